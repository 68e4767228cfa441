"""A model folder from the Hugging Face hub, by way of the hub's own client and cache.

HF_HOME, HF_HUB_OFFLINE, HF_TOKEN and HF_ENDPOINT act as they do for that client. Only plain data is
asked for: no pickles and no code, whatever else the repository holds.
"""

from __future__ import annotations

from pathlib import Path

from cutaway.core.errors import DownloadError, ModelNotFoundError

FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "added_tokens.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "README.md",
    "model.safetensors",
    "model.safetensors.index.json",
    "model-*-of-*.safetensors",
)


def fetch(repository: str) -> Path:
    """The folder of a repository such as owner/name, downloaded where the hub's cache lacks it.

    Raises: ModelNotFoundError when the hub knows no such repository, DownloadError otherwise.
    """
    # Its progress bar's type has a parameter that the client leaves open.
    from huggingface_hub import snapshot_download  # pyright: ignore[reportUnknownVariableType]
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        return Path(snapshot_download(repository, allow_patterns=list(FILES)))
    except GatedRepoError as error:
        raise DownloadError(
            f"{repository} is gated: accept its terms on the hub, then set HF_TOKEN."
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ModelNotFoundError(
            f"the hub has no model {repository}, or it is private. Check the name; for a private "
            "model set HF_TOKEN."
        ) from error
    except LocalEntryNotFoundError as error:
        raise DownloadError(
            f"{repository} is not in the hub's cache and the hub cannot be asked: the network is "
            "down or HF_HUB_OFFLINE is set. Connect or unset it, or give the path of a folder."
        ) from error
    except Exception as error:
        # The client's HTTP library has changed twice, and its errors with it.
        raise DownloadError(f"{repository} could not be fetched from the hub: {error}.") from error
