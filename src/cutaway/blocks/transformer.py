"""The whole decoder: embedding, a stack of blocks, unembedding. One step in, logits out."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from cutaway.blocks.attention.convolution import ShortConvolution
from cutaway.blocks.attention.delta import DeltaLayer
from cutaway.blocks.attention.grouped import GroupedAttention
from cutaway.blocks.attention.latent import LatentAttention
from cutaway.blocks.block import Block
from cutaway.blocks.embedding import Embedding
from cutaway.blocks.layer_inputs import LayerInputs
from cutaway.blocks.layer_share import ElsewhereBlock, ElsewhereTable, LayerShare
from cutaway.blocks.linear import Linear, division_error
from cutaway.blocks.mlp import GatedMLP, PlainMLP
from cutaway.blocks.moe import Experts, MixtureOfExperts
from cutaway.blocks.norm import HeadLayerNorm
from cutaway.blocks.positions import Frequencies, angles
from cutaway.blocks.unembed import Unembedding
from cutaway.core.errors import ConfigError
from cutaway.core.layout import CacheSpec
from cutaway.core.step import Step
from cutaway.core.weight_targets import KeptRows
from cutaway.host.pulse import PULSE
from cutaway.host.turns import breathe
from cutaway.kernels.gather import Gatherer
from cutaway.kernels.norm.late import LateNorm
from cutaway.quantize.packed import Packed

SPARES_ROWS = frozenset({"cuda"})  # devices on which the last block is spared what nobody reads


class Transformer(nn.Module):
    """Decoder-only transformer.

    layer_inputs: the per-layer inputs, beside the stream, as in Gemma 4.
    frequencies: the distinct ones of its layers, in the order in which they first appear.

    Shapes: a step of T tokens that wants R rows -> logits [R, V].
    """

    def __init__(
        self,
        *,
        embedding: Embedding,
        blocks: Iterable[Block],
        unembedding: Unembedding,
        layer_inputs: LayerInputs | None = None,
    ) -> None:
        super().__init__()
        self.layer_inputs = layer_inputs
        self.embedding = embedding
        self.blocks = nn.ModuleList(blocks)
        self.unembedding = unembedding
        self.group: Gatherer | None = None  # of the ranks that have its other rows
        self.stage: LayerShare | None = None  # where ranks have layers, each its own
        by_layer = [block.attention.frequencies for block in self._typed_blocks]
        self.frequencies: tuple[Frequencies, ...] = tuple(
            dict.fromkeys(each for each in by_layer if each is not None)
        )
        # By index: hashing the factors of LongRoPE at every layer of every step costs time.
        self._turns = [None if each is None else self.frequencies.index(each) for each in by_layer]

    def divide(self, group: Gatherer) -> Mapping[str, KeptRows]:
        """Keep one rank's part of the model, before weights are set: which rows of what.

        Attention keeps heads, a feed-forward and each expert their units, the vocabulary its rows;
        any other map keeps rows of its result. Norms and routers stay whole in every rank, but for
        the weights that a norm has for each head.
        Returns: by parameter the rows that are kept; a parameter that is not named is whole.
        """
        kept: dict[str, KeptRows] = {}
        is_tied = self.unembedding.table is self.embedding.table
        self.embedding.divide(group)
        self.unembedding.divide(group, self.embedding)
        if is_tied:
            self.unembedding.table = self.embedding.table
        rows = KeptRows((self.embedding.rows[group.rank],))
        kept |= {"embedding.table.weight": rows, "unembedding.table.weight": rows}
        done: set[nn.Module] = set()
        modules = list(cast("Iterator[tuple[str, nn.Module]]", self.named_modules()))
        for path, module in modules:
            if module in done:
                continue
            if isinstance(module, GroupedAttention | GatedMLP | PlainMLP):
                module.divide(group)
                done.update(module.modules())
            elif isinstance(module, LatentAttention | DeltaLayer | Experts):
                kept |= {f"{path}.{name}": each for name, each in module.divide(group).items()}
                done.update(module.modules())
            elif isinstance(module, Linear):
                module.divide(group)
        for path, module in modules:
            if isinstance(module, GroupedAttention) and module.sinks_kept is not None:
                kept[f"{path}.sinks"] = KeptRows((module.sinks_kept,))
            if isinstance(module, HeadLayerNorm) and module.kept is not None:
                kept[f"{path}.weight"] = KeptRows((module.kept,))
            if isinstance(module, Linear) and module.kept is not None:
                for segment, ranges in enumerate(module.kept):
                    kept[f"{path}.segments.{segment}.weight"] = KeptRows(ranges)
                    kept[f"{path}.biases.{segment}"] = KeptRows(ranges)
        self.group = group
        return kept

    def keep_layers(
        self, group: Gatherer, parts: tuple[range, ...], *, width: int, dtype: torch.dtype
    ) -> frozenset[str]:
        """Keep one rank's layers, before weights are set, and the tables in the first stage alone.

        What layers elsewhere keep in pages is as this rank would have it: rows are divided before.
        parts: the layers of each rank.   width, dtype: of hidden rows.
        Returns: the parameters that other ranks have.
        Raises: ConfigError for a model whose layers have inputs beside the stream.
        """
        if self.layer_inputs is not None:
            raise ConfigError(
                "pipeline is set, and this model's layers have inputs of their own beside the "
                "stream, which ranks do not hand on. Set pipeline to 1; tensor divides it."
            )
        for part in parts:
            for layer in part:
                source = self.cache_specs[layer].source
                if source is not None and source not in part:
                    raise ConfigError(
                        f"pipeline is {group.size}, and layer {layer} reads the keys of layer "
                        f"{source}, which another rank would have. Set pipeline to 1; tensor "
                        "divides this model."
                    )
        before = {name for name, _ in self.named_parameters(remove_duplicate=False)}
        self.stage = LayerShare(group, parts, width, dtype)
        for layer, block in enumerate(self._typed_blocks):
            if layer not in self.stage.layers:
                attention = block.attention
                self.blocks[layer] = ElsewhereBlock(attention.cache_spec, attention.frequencies)
        if not self.stage.is_first:
            self.embedding = cast(Embedding, ElsewhereTable())
            self.unembedding = cast(Unembedding, ElsewhereTable())
        return frozenset(
            before - {name for name, _ in self.named_parameters(remove_duplicate=False)}
        )

    @contextmanager
    def step_of_ranks(self) -> Generator[None]:
        """Within it ranks hand one another what they have of a step."""
        with ExitStack() as entered:
            for group in (self.group, None if self.stage is None else self.stage.group):
                if group is not None:
                    entered.enter_context(group.step())
            yield

    @property
    def own_layers(self) -> range:
        """The layers that this rank computes: all, unless ranks divide them."""
        return range(len(self.blocks)) if self.stage is None else self.stage.layers

    def check_whole(self) -> None:
        """Raise ConfigError where ranks have parts of it: who reads its matrices needs all."""
        if self.stage is not None:
            raise ConfigError(
                f"this reads all layers, which {self.stage.group.size} ranks have here. Start "
                "with pipeline 1 for it."
            )
        if self.group is not None:
            raise division_error(self.group.size)

    @property
    def cache_specs(self) -> tuple[CacheSpec, ...]:
        """What each layer keeps."""
        return tuple(block.attention.cache_spec for block in self._typed_blocks)

    def position_key(self, declared_length: int) -> tuple[int, ...]:
        """Equal for two declared lengths exactly if they turn every layer's heads alike."""
        return tuple(each.key(declared_length) for each in self.frequencies)

    def forward(self, step: Step) -> Tensor:
        """Logits of the rows that the step wants; of ranks with layers alone, what they hand on.

        Shapes: [R, V].
        """
        rows = self._few_rows(step)
        hidden = self._stream(step, rows)
        if rows is not None:
            return self.unembedding.of_rows(hidden, step)
        is_first = self.stage is None or self.stage.is_first
        return self.unembedding(hidden, step) if is_first else hidden

    def hidden(self, step: Step) -> Tensor:
        """The stream behind the last block, of all the step's tokens. Shapes: [T, D]."""
        return self._stream(step, None)

    def _few_rows(self, step: Step) -> Tensor | None:
        """The rows whose logits are wanted, where the last feed-forward is spared the others.

        A product's order of summation may follow from how many rows it has. So on a CPU, where a
        row is the same bits in chunks of any size, all rows are computed.
        """
        is_whole = self.stage is None and self.group is None and self.layer_inputs is None
        is_served = bool(step.caches) and step.adapters is None
        if not (is_whole and is_served and step.token_ids.device.type in SPARES_ROWS):
            return None
        return step.logit_rows if len(step.logit_rows) < step.num_tokens else None

    def _stream(self, step: Step, rows: Tensor | None) -> Tensor:
        """The stream behind the last block, of all tokens or of some. Shapes: [T or R, D]."""
        stage = self.stage
        if stage is None or stage.is_first:
            hidden = self.embedding(step)
        else:
            hidden = stage.begin(step.positions)
        # Angles keep float32 where the rest has fewer bits: a fused form rounds what they turn.
        wide = torch.promote_types(hidden.dtype, torch.float32)
        rotations = [
            angles(each, step.positions, step.declared_lengths, wide) for each in self.frequencies
        ]
        layer_inputs = None if self.layer_inputs is None else self.layer_inputs(hidden, step)
        own = self.own_layers
        blocks = [cast(Block, self.blocks[layer]) for layer in own]
        norms = [block.attention_norm for block in blocks]
        normed: Tensor | LateNorm = norms[0](hidden) if norms else hidden
        for index, (layer, block) in enumerate(zip(own, blocks, strict=True)):
            turn = self._turns[layer]
            rotation = None if turn is None else rotations[turn]
            if rows is not None and index + 1 == len(blocks):
                hidden = _end(block, hidden, normed, rotation, step, layer, rows)
                PULSE.beat()
                break
            hidden, normed = block(
                hidden,
                normed,
                rotation,
                step,
                layer,
                layer_input=None if layer_inputs is None else layer_inputs[:, layer],
                next_norm=norms[index + 1] if index + 1 < len(norms) else None,
            )
            if step.streams is not None:
                step.streams(hidden, layer)
            PULSE.beat()
            breathe()
        if stage is None:
            return hidden
        handed_on = stage.end(hidden)
        return stage.close(handed_on) if stage.is_first else handed_on

    @property
    def can_capture(self) -> bool:
        """Whether a graph can stand for a step.

        Experts in plain torch ask who went where; states go token by token, in lengths' loops.
        """
        return not any(
            isinstance(module, DeltaLayer | ShortConvolution)
            or (isinstance(module, MixtureOfExperts) and not module.experts.stays_on_device)
            for module in self.modules()
        )

    def attends_by_length(self, device: torch.device, dtype: torch.dtype) -> bool:
        """Whether a step's time follows from its contexts, however wide its page tables are."""
        attentions = [block.attention for block in self._typed_blocks]
        return all(
            isinstance(each, GroupedAttention) and each.attends_by_length(device, dtype)
            for each in attentions
        )

    @property
    def is_packed(self) -> bool:
        """Whether native kernels multiply with every linear map and with both tables."""
        weights = list(self._segments())
        if self.stage is None or self.stage.is_first:
            weights += [self.embedding.table, self.unembedding.table]
        return all(isinstance(weight, Packed) for weight in weights)

    @property
    def _typed_blocks(self) -> Iterator[Block]:
        return (cast(Block, block) for block in self.blocks)

    def _segments(self) -> Iterator[nn.Module]:
        for module in self.modules():
            if isinstance(module, Linear):
                yield from module.segments

    def join_segments(self) -> None:
        """Stack dense segments for serving; training and loading see them apart."""
        for module in self.modules():
            if isinstance(module, Linear):
                module.join()
        for block in self._typed_blocks:
            if isinstance(block.attention, GroupedAttention) and isinstance(block.mlp, GatedMLP):
                block.attention.output.precede(block.mlp.gate_up)


def _end(
    block: Block,
    hidden: Tensor,
    normed: Tensor | LateNorm,
    rotation: tuple[Tensor, Tensor] | None,
    step: Step,
    layer: int,
    rows: Tensor,
) -> Tensor:
    """Some rows of the stream behind the last block.

    Who watches sees all rows; what comes of the wanted ones is computed as without a watcher, so
    that it is the same bits, unless a value was put in another's place.
    Shapes: hidden, normed [T, D], rows [R] -> [R, D].
    """
    has_replaced = False
    reads = step.streams is not None and layer in step.streams.layers
    if step.sink is not None or reads:
        sink = step.sink

        def watch(name: str, value: Tensor, layer: int | None) -> Tensor | None:
            nonlocal has_replaced
            replaced = None if sink is None else sink(name, value, layer)
            has_replaced = has_replaced or replaced is not None
            return replaced

        watched = step if sink is None else replace(step, sink=watch)
        whole, _ = block(hidden, normed, rotation, watched, layer)
        if step.streams is not None and reads:
            step.streams(whole, layer)
        if has_replaced:
            return whole[rows]
        step = replace(step, sink=None, streams=None)
    return block(hidden, normed, rotation, step, layer, rows=rows)[0]
