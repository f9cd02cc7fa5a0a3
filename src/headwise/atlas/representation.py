"""A small card of HTML for notebooks, with its style inlined and no script."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup

# Colours follow the notebook's own theme where it has one (JupyterLab, VS Code), else plain ink on
# nothing.
_STYLE = """
.headwise-card{font:13px/1.5 var(--jp-ui-font-family,system-ui,-apple-system,"Segoe UI",sans-serif);max-width:760px}
.headwise-card{color:var(--jp-ui-font-color1,var(--vscode-editor-foreground,inherit))}
.headwise-card .hw-title{font-weight:600;border-bottom:1px solid rgba(128,128,128,.4);padding:4px 0;margin-bottom:4px}
.headwise-card dl{display:grid;grid-template-columns:minmax(110px,max-content) 1fr;gap:1px 16px;margin:4px 0}
.headwise-card dt{opacity:.7;font-weight:400;margin:0}
.headwise-card dd{margin:0;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
"""


def html_card(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """A card with a title and rows of name and value, in the way of xarray. Everything given is
    escaped; the result holds no script and asks nothing of the network."""
    lines = Markup("").join(Markup("<dt>{}</dt><dd>{}</dd>").format(*row) for row in rows)
    card = "<div class='headwise-card'><style>{}</style><div class='hw-title'>{}</div><dl>{}</dl></div>"
    return str(Markup(card).format(Markup(_STYLE), title, lines))
