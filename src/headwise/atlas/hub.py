"""Atlases on the Hugging Face hub: dataset repositories that hold an `atlas.nc`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwise.core.errors import AtlasError, ParameterError
from headwise.core.version import __version__

SCHEME = "hf://"
ATLAS_FILE = "atlas.nc"
CARD_FILE = "README.md"
_ADDRESS = re.compile(
    r"hf://(?:datasets/)?(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[^/]+))?(?:/(?P<file>.+))?"
)
HOW = "write hf://OWNER/NAME, with @REVISION or /PATH.nc after it where needed"


@dataclass(frozen=True, slots=True)
class HubAddress:
    """An atlas on the hub: the dataset repository, its revision (None: the newest) and the file.

    Examples
    --------
    >>> HubAddress.parse("hf://datasets/me/atlases@v2/bert.nc")
    HubAddress(repo='me/atlases', revision='v2', file='bert.nc')
    >>> HubAddress.parse("hf://me/bert-atlas")
    HubAddress(repo='me/bert-atlas', revision=None, file='atlas.nc')
    """

    repo: str
    revision: str | None = None
    file: str = ATLAS_FILE

    @classmethod
    def parse(cls, address: str) -> HubAddress:
        """Return the parts of an address; raise an error if it is none."""
        match = _ADDRESS.fullmatch(address)
        if match is None:
            raise ParameterError(f"'{address}' is no address of an atlas on the hub; {HOW}.")
        file = (match["file"] or ATLAS_FILE).rstrip("/")
        if not file.endswith(".nc"):
            file += f"/{ATLAS_FILE}"  # a folder of the repository
        return cls(match["repo"], match["revision"], file)


def is_hub_address(path: str | Path) -> bool:
    """Return whether a path is an address of the hub."""
    return isinstance(path, str) and path.startswith(SCHEME)


def download_atlas(address: str) -> Path:
    """Return the file of an atlas on the hub, fetched once into the hub's cache.

    A token is taken from the environment or from `hf auth login`, as everywhere on the hub."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError

    parts = HubAddress.parse(address)
    try:
        file = hf_hub_download(parts.repo, parts.file, repo_type="dataset", revision=parts.revision)
    except RepositoryNotFoundError as error:
        raise AtlasError(
            f"There is no dataset '{parts.repo}' on the hub, or it is private and this machine "
            "has no token for it; check the name, or run `hf auth login`."
        ) from error
    except EntryNotFoundError as error:
        raise AtlasError(
            f"The dataset '{parts.repo}' on the hub has no file '{parts.file}'; name another after "
            "the repository."
        ) from error
    except Exception as error:  # of the network, in the ways of several libraries
        raise AtlasError(f"{address} cannot be fetched ({_first_line(error)}).") from error
    return Path(file)


@dataclass(frozen=True, slots=True)
class HubUpload:
    """Where an atlas goes on the hub, and how; see `Atlas.push_to_hub`."""

    repo: str
    file: str
    private: bool | None = None
    token: str | None = None
    revision: str | None = None
    commit_message: str | None = None
    create_pr: bool = False


def upload_atlas(content: bytes, card: str, upload: HubUpload) -> str:
    """Upload an atlas in one commit and return the address of that commit.

    The repository is created where there is none. The card is added where there is none: one that
    its owner wrote stays."""
    from huggingface_hub import CommitOperationAdd, HfApi

    HubAddress.parse(f"{SCHEME}{upload.repo}")  # a clear error before anything is sent
    if not upload.file.endswith(".nc"):
        raise ParameterError(f"`path_in_repo` must end with .nc; it is '{upload.file}'.")
    api = HfApi(token=upload.token)
    try:
        api.create_repo(upload.repo, repo_type="dataset", private=upload.private, exist_ok=True)
        operations = [CommitOperationAdd(upload.file, content)]
        if not api.file_exists(upload.repo, CARD_FILE, repo_type="dataset"):
            operations.append(CommitOperationAdd(CARD_FILE, card.encode()))
        commit = api.create_commit(
            upload.repo,
            operations,
            commit_message=upload.commit_message or "Upload atlas",
            repo_type="dataset",
            revision=upload.revision,
            create_pr=upload.create_pr,
        )
    except Exception as error:  # of the network, in the ways of several libraries
        raise AtlasError(
            f"The atlas cannot be uploaded to '{upload.repo}' ({_first_line(error)})."
        ) from error
    return str(commit.commit_url)


def dataset_card(title: str, provenance: Mapping[str, Any], repo: str, file: str) -> str:
    """Return the card of a dataset that holds an atlas."""
    model = provenance.get("model", {})
    corpus = provenance.get("corpus", {})
    address = f"{SCHEME}{repo}" if file == ATLAS_FILE else f"{SCHEME}{repo}/{file}"
    return f"""---
tags:
- headwise
- attention
- interpretability
---

# {title}

What each attention head of `{model.get("name", "?")}` does on {corpus.get("name", "?")}, measured by
headwise {__version__}: one NetCDF file with a group of labelled arrays for each analysis.

```python
from headwise import Atlas

atlas = Atlas.load("{address}")
atlas.describe()
```
"""


def _first_line(error: Exception) -> str:
    """Return what an error says first; those of the hub go on for paragraphs."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else ""
    return f"{type(error).__name__}: {text}"[:300]
