"""A small HTML card for notebooks, with its style inlined and without script."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup

# Colours follow the theme of the notebook where there is one (JupyterLab, VS Code).
_STYLE = """
.headwise-card{font:13px/1.5 var(--jp-ui-font-family,system-ui,-apple-system,"Segoe UI",sans-serif);max-width:760px}
.headwise-card{color:var(--jp-ui-font-color1,var(--vscode-editor-foreground,inherit))}
.headwise-card .hw-title{font-weight:600;border-bottom:1px solid rgba(128,128,128,.4);padding:4px 0;margin-bottom:4px}
.headwise-card dl{display:grid;grid-template-columns:minmax(110px,max-content) 1fr;gap:1px 16px;margin:4px 0}
.headwise-card dt{opacity:.7;font-weight:400;margin:0}
.headwise-card dd{margin:0;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
"""


def html_card(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """Return a card with a title and rows of name and value, like that of xarray.

    All texts are escaped; the result has no script and needs no network."""
    lines = [Markup("<dt>{}</dt><dd>{}</dd>").format(name, value) for name, value in rows]
    card = (
        "<div class='headwise-card'><style>{}</style>"
        "<div class='hw-title'>{}</div><dl>{}</dl></div>"
    )
    return str(Markup(card).format(Markup(_STYLE), title, Markup("").join(lines)))
