"""What can be seen of an answer, in the order in which data passes: one file per view."""

from __future__ import annotations

from cutaway.core.errors import RequestError
from cutaway.core.limits import quote
from cutaway.views import (
    arithmetic,
    attention,
    characters,
    cost,
    detokenization,
    drift,
    embeddings,
    experts,
    feedforward,
    grammar,
    lens,
    logits,
    merges,
    pages,
    positions,
    probabilities,
    residual,
    sampling,
    speculation,
    template,
    timeline,
    tokens,
    weights,
)
from cutaway.views.parts.view import View

VIEWS: tuple[View, ...] = (
    characters.VIEW,
    template.VIEW,
    tokens.VIEW,
    merges.VIEW,
    embeddings.VIEW,
    positions.VIEW,
    attention.VIEW,
    arithmetic.VIEW,
    feedforward.VIEW,
    experts.VIEW,
    weights.VIEW,
    residual.VIEW,
    drift.VIEW,
    lens.VIEW,
    logits.VIEW,
    probabilities.VIEW,
    grammar.VIEW,
    sampling.VIEW,
    speculation.VIEW,
    detokenization.VIEW,
    pages.VIEW,
    timeline.VIEW,
    cost.VIEW,
)


def view_of(name: str) -> View:
    """The view of that name. Raises: RequestError with the names there are."""
    for view in VIEWS:
        if view.name == name:
            return view
    known = ", ".join(view.name for view in VIEWS)
    raise RequestError(f"view is {quote(name)}; there are: {known}.", param="view")
