"""Jinja's code generator, with payment and marks in the code that it writes.

Every block of statements pays for what it holds before it runs, operators become calls that pay
for themselves, and texts of the template are taken from a table of marked texts.
"""

# ruff: noqa: N802 - Jinja finds a visitor by the name of its node.

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame, MacroRef
from jinja2.idtracking import VAR_LOAD_RESOLVE

from cutaway.text.chat_messages import MAX_INT_BITS

if TYPE_CHECKING:
    from cutaway.text.sandbox import Sandbox

_REFUSED = (
    *(nodes.Block, nodes.Extends, nodes.Include, nodes.Import, nodes.FromImport),
    *(nodes.EvalContextModifier, nodes.ScopedEvalContextModifier),
)


class Compiler(CodeGenerator):
    """Jinja's code generator, with payment and marks in the code."""

    def get_visitor(self, node: nodes.Node) -> Callable[..., Any] | None:
        """The method that compiles a node. Refuses nodes that have no place in a template."""
        if isinstance(node, _REFUSED):
            self.fail(f"{type(node).__name__} has no place in a chat template", node.lineno)
        return super().get_visitor(node)

    def enter_frame(self, frame: Frame) -> None:
        """Start a scope, and note which names it reads from outside."""
        super().enter_frame(frame)
        loads = frame.symbols.loads.values()
        self._sandbox.names_read |= {
            name for action, name in loads if action == VAR_LOAD_RESOLVE and name
        }

    def write_commons(self) -> None:
        """Write the lines that every compiled function begins with, the meter's among them."""
        super().write_commons()
        self.writeline("meter = context.meter")
        self.writeline("concat = meter.concat")

    def blockvisit(self, nodes: Iterable[nodes.Node], frame: Frame) -> None:
        """Compile a run of statements; they pay for all they hold before they run."""
        # Looking up names and attributes is not paid for one by one: a block pays for all it holds.
        statements = list(nodes)
        self.writeline(f"meter.charge({1 + sum(map(_count, statements))})")
        super().blockvisit(statements, frame)

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:
        """Compile a constant; a text comes from the table of marked texts."""
        if isinstance(node.value, str):
            self.write(self._literal(node.value))
            return
        if isinstance(node.value, int) and node.value.bit_length() > MAX_INT_BITS:
            self.fail(f"an integer has more than {MAX_INT_BITS} bits", node.lineno)
        super().visit_Const(node, frame)

    def visit_TemplateData(self, node: nodes.TemplateData, frame: Frame) -> None:
        """Compile text of the template, taken from the table of marked texts."""
        self.write(self._literal(node.data))

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return self._literal("".join(group))

    def visit_Add(self, node: nodes.Add, frame: Frame) -> None:
        """Compile a chain of additions as one call that pays for its result."""
        # Templates add many texts in a row: one call copies each of them once.
        first: nodes.Expr = node
        rest: list[nodes.Expr] = []
        while isinstance(first, nodes.Add):
            rest.append(first.right)
            first = first.left
        self.write("environment.add(meter")
        for term in (first, *reversed(rest)):
            self.write(", ")
            self.visit(term, frame)
        self.write(")")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        """Compile the ~ operator as one call that pays for its result."""
        self.write("meter.join((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        """Compile a chain of comparisons as one call that pays for what it reads."""
        self.write("environment.compare(meter, ")
        self.visit(node.expr, frame)
        for operand in node.ops:
            self.write(f", {operand.op!r}, ")
            self.visit(operand.expr, frame)
        self.write(")")

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        """Compile a dict display as one call that pays for its pairs."""
        self.write("environment.mapping(meter")
        for pair in node.items:
            self.write(", (")
            self.visit(pair.key, frame)
            self.write(", ")
            self.visit(pair.value, frame)
            self.write(")")
        self.write(")")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        """Compile a subscript; a slice becomes a call that pays for its copy."""
        if not isinstance(node.arg, nodes.Slice):
            super().visit_Getitem(node, frame)
            return
        where = (node.arg.start, node.arg.stop, node.arg.step)
        none = nodes.Const(None, lineno=node.lineno)
        parts = [node.node, *(none if part is None else part for part in where)]
        self.write("environment.sliced(meter")
        for part in parts:
            self.write(", ")
            self.visit(part, frame)
        self.write(")")

    def _literal(self, text: str) -> str:
        return self._sandbox.literal(text)

    @property
    def _sandbox(self) -> Sandbox:
        return cast("Sandbox", self.environment)

    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        """Compile a loop; items that its condition leaves out are paid for as well."""
        if node.test is not None:
            # Items that the loop leaves out never reach its body, where it pays for the others.
            node.test = nodes.And(_payment(node, [node.test]), node.test, lineno=node.lineno)
        super().visit_For(node, frame)

    def macro_body(
        self, node: nodes.Macro | nodes.CallBlock, frame: Frame
    ) -> tuple[Frame, MacroRef]:
        """Compile a macro's body; each call pays for the defaults that it works out."""
        # Each call works out the defaults anew.
        paid = nodes.ExprStmt(_payment(node, node.defaults), lineno=node.lineno)
        node.body = [paid, *node.body]
        return super().macro_body(node, frame)


def _count(node: nodes.Node) -> int:
    """Nodes that run when the node does; a nested body pays for itself."""
    return 1 + sum(map(_count, node.iter_child_nodes(exclude=("body", "else_"))))


def _payment(node: nodes.Node, work: Sequence[nodes.Node]) -> nodes.Call:
    """A call that pays for the work and gives true."""
    steps = nodes.Const(sum(map(_count, work)))
    pay = nodes.EnvironmentAttribute("pay")
    return nodes.Call(pay, [steps], [], None, None, lineno=node.lineno)
