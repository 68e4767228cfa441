"""Settings that cannot be are told before a server starts."""

from __future__ import annotations

import pytest

from cutaway.cli.settings.settings import resolve
from cutaway.core.errors import ConfigError


@pytest.mark.parametrize("page_size", [4, 48, 512])
def test_a_page_size_that_no_cache_has_is_told_by_its_own_name(page_size: int) -> None:
    with pytest.raises(ConfigError, match=f"page_size is {page_size}; it must be a power of two"):
        resolve({"page_size": page_size})
