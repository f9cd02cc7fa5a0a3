"""The options of `gallery`; this module imports neither torch nor transformers."""

from __future__ import annotations

from dataclasses import dataclass

from headwise.core.options import CheckedOptions, option


@dataclass(frozen=True)
class GalleryOptions(CheckedOptions):
    """The options of `gallery`."""

    title: str = option("Attention heads", help="The title of the page.")
    copy: bool = option(
        True,
        flag="copy/no-copy",
        help="Copy the page of each atlas into the gallery, so that its folder is all that a web "
        "server needs; otherwise the gallery has no links to pages.",
    )
    overwrite: bool = option(False, in_identity=False, help="Replace an existing gallery.")
