"""A small card of HTML for notebooks, with its style inlined and no script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup, escape

# Colours follow the notebook's own theme where it has one (JupyterLab, VS Code), else plain ink on nothing.
_STYLE = """
.headwise-card{font:13px/1.5 var(--jp-ui-font-family,system-ui,-apple-system,"Segoe UI",sans-serif);max-width:760px}
.headwise-card{color:var(--jp-ui-font-color1,var(--vscode-editor-foreground,inherit))}
.headwise-card .hw-title{font-weight:600;border-bottom:1px solid rgba(128,128,128,.4);padding:4px 0;margin-bottom:4px}
.headwise-card .hw-sub{font-weight:400;opacity:.7;margin-left:.5em}
.headwise-card dl{display:grid;grid-template-columns:minmax(110px,max-content) 1fr;gap:1px 16px;margin:4px 0}
.headwise-card dt{opacity:.7;font-weight:400;margin:0}
.headwise-card dd{margin:0;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
.headwise-card details{margin:2px 0}
.headwise-card summary{cursor:pointer;padding:2px 0}
.headwise-card .hw-count{opacity:.6;margin-left:.4em}
.headwise-card details dl{padding-left:16px}
.headwise-card .hw-note{opacity:.75;font-size:12px;margin:4px 0 0}
"""


def html_card(
    title: str,
    rows: Sequence[tuple[str, object]] = (),
    *,
    subtitle: str = "",
    sections: Mapping[str, Sequence[tuple[str, object]]] | None = None,
    note: str = "",
    open_sections: bool = False,
) -> str:
    """A card with a title, rows of name and value, and sections that fold, in the way of xarray.

    Parameters
    ----------
    title, subtitle
        The heading and what stands beside it in a lighter tone.
    rows
        Pairs of name and value, always shown.
    sections
        A heading to its own pairs of name and value; folded unless `open_sections`.
    note
        A line of small print at the end.

    Everything given is escaped; the result holds no script and asks nothing of the network.
    """
    parts = [Markup("<div class='headwise-card'><style>{}</style>").format(Markup(_STYLE))]
    beside = Markup("<span class='hw-sub'>{}</span>").format(subtitle) if subtitle else ""
    parts.append(Markup("<div class='hw-title'>{}{}</div>").format(title, beside))
    if rows:
        parts.append(_rows(rows))
    for heading, content in (sections or {}).items():
        count = Markup("<span class='hw-count'>({})</span>").format(len(content))
        opened = Markup(" open") if open_sections else ""
        parts.append(
            Markup("<details{}><summary>{}{}</summary>{}</details>").format(opened, heading, count, _rows(content))
        )
    if note:
        parts.append(Markup("<p class='hw-note'>{}</p>").format(note))
    parts.append(Markup("</div>"))
    return str(Markup("").join(parts))


def _rows(rows: Sequence[tuple[str, object]]) -> Markup:
    lines = (Markup("<dt>{}</dt><dd>{}</dd>").format(name, escape(str(value))) for name, value in rows)
    return Markup("<dl>{}</dl>").format(Markup("").join(lines))
