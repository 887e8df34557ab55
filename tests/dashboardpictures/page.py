"""A dashboard as one page of HTML, its panels where Grafana puts them."""

from __future__ import annotations

from html import escape
from typing import Any

from dashboardpictures import chart, single, tables
from dashboardpictures.asking import Window
from dashboardpictures.supported import UnsupportedError, check

Json = dict[str, Any]

WIDTH = 1500
_MARGIN, _GAP, _LINE = 16, 8, 38
"""A line of the grid is 30 pixels and a gap."""
_COLUMN = (WIDTH - 2 * _MARGIN + _GAP) / 24
_TITLE, _PADDING = 34, 8
_ROW = "row"

_STYLE = f"""
* {{ box-sizing: border-box; }}
body {{ margin: 0; width: {WIDTH}px; background: #111217; color: #ccccdc;
  font: 13px Inter, "Liberation Sans", Arial, sans-serif; }}
header {{ padding: 14px {_MARGIN}px 10px; }}
h1 {{ font-size: 20px; font-weight: 500; margin: 0 0 10px; }}
header span {{ display: inline-flex; margin-right: 8px; border: 1px solid #33363d; }}
header span b, header span i {{ padding: 5px 8px; font-weight: 500; font-style: normal; }}
header span b {{ background: #181b1f; color: #9a9ba6; }}
footer {{ padding: 6px {_MARGIN}px 14px; color: #9a9ba6; }}
main {{ position: relative; }}
section, h2 {{ position: absolute; margin: 0; overflow: hidden; }}
h2 {{ font-size: 16px; font-weight: 500; padding: 6px 0; }}
h2::before {{ content: "⌄"; margin: 0 10px 0 4px; }}
section {{ background: #181b1f; border: 1px solid #25282d; border-radius: 2px; }}
h3 {{ font-size: 14px; font-weight: 500; margin: 0; padding: 8px; height: {_TITLE}px; }}
section > div {{ padding: 0 {_PADDING}px {_PADDING}px; overflow: hidden; }}
.down {{ display: flex; flex-direction: column; }}
.across {{ display: flex; }}
.empty {{ height: 100%; display: flex; align-items: center; justify-content: center;
  color: #9a9ba6; font-size: 15px; }}
.list {{ display: flex; flex-wrap: wrap; font-size: 12px; line-height: 22px; }}
.list span {{ margin-right: 14px; white-space: nowrap; }}
.list i, .legend i {{ display: inline-block; width: 14px; height: 4px; border-radius: 2px;
  margin: 0 6px 3px 0; }}
.legend {{ overflow: hidden; font-size: 12px; }}
table {{ border-collapse: collapse; width: 100%; }}
.legend td, .legend th {{ padding: 0 6px; height: 22px; border-bottom: 1px solid #25282d;
  text-align: right; white-space: nowrap; color: #ccccdc; }}
.legend th {{ color: #6e9fff; font-weight: 500; }}
.legend :is(td, th):first-child {{ text-align: left; width: 100%; }}
.table table {{ table-layout: fixed; }}
.table :is(td, th) {{ height: 36px; padding: 0 8px; overflow: hidden; text-overflow: ellipsis;
  white-space: nowrap; border: 1px solid #25282d; text-align: left; }}
.table th {{ font-weight: 500; color: #6e9fff; }}
.table u {{ color: #6e9fff; text-decoration: none; }}
.table {{ position: relative; height: 100%; overflow: hidden; }}
.table s {{ position: absolute; top: 0; right: 0; width: 6px; border-radius: 3px;
  background: #5a5c66; }}
.gauge {{ display: flex; align-items: center; gap: 8px; }}
.gauge span {{ flex: 1; }}
.gauge i {{ display: block; height: 20px; }}
.gauge b {{ font-weight: 400; }}
.stats {{ height: 100%; justify-content: space-around; align-items: center; }}
.stats div {{ display: flex; flex-direction: column; align-items: center; }}
.stats span {{ font-size: 15px; color: #ccccdc; }}
.stats b {{ font-weight: 500; line-height: 1.1; }}
.bars {{ display: flex; flex-direction: column; gap: 8px; }}
.bar {{ display: flex; align-items: center; gap: 8px; }}
.bar span {{ text-align: right; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }}
.bar i {{ height: 100%; border-radius: 2px; }}
.bar b {{ font-weight: 500; }}
"""


def page(board: Json, window: Window, said: dict[str, str], caption: str) -> str:
    """All of it; `said` is what the variables above are set to, by label."""
    marks = window.annotations(board)
    panels = [_placed(panel, window, marks) for panel in board["panels"]]
    bottom = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
    chosen = "".join(
        f"<span><b>{escape(name)}</b><i>{escape(value)}</i></span>" for name, value in said.items()
    )
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(board["title"])}</title>
<style>{_STYLE}</style></head>
<body><header><h1>{escape(board["title"])}</h1>{chosen}</header>
<main style="height:{bottom * _LINE}px">{"".join(panels)}</main>
<footer>{escape(caption)}</footer></body></html>
"""


def _placed(panel: Json, window: Window, marks: chart.Marks) -> str:
    at = panel["gridPos"]
    width, height = at["w"] * _COLUMN - _GAP, at["h"] * _LINE - _GAP
    place = (
        f"left:{_MARGIN + at['x'] * _COLUMN:.1f}px;top:{at['y'] * _LINE}px;"
        f"width:{width:.1f}px;height:{height}px"
    )
    if panel["type"] == _ROW:
        if panel["panels"]:
            raise UnsupportedError(f"{panel['title']}: a row with panels folded into it")
        return f'<h2 style="{place}">{escape(panel["title"])}</h2>'
    size = (width - 2 * _PADDING - 2, height - _TITLE - _PADDING - 2)
    return (
        f'<section style="{place}"><h3>{escape(panel["title"])}</h3>'
        f'<div style="height:{height - _TITLE - 2}px">'
        f"{body(panel, window, size, marks)}</div></section>"
    )


def body(panel: Json, window: Window, size: chart.Size, marks: chart.Marks = ()) -> str:
    """What stands in a panel; raises UnsupportedError for what cannot be drawn."""
    check(panel)
    if panel["type"] == "timeseries":
        return chart.time_series(panel, window, size, marks)
    if panel["type"] == "state-timeline":
        return chart.state_timeline(panel, window, size)
    if panel["type"] == "stat":
        return single.stat(panel, window, *size)
    if panel["type"] == "bargauge":
        return single.bar_gauge(panel, window, *size)
    return tables.table(panel, window, size[1])
