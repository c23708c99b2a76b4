"""The report's plots as SVG and PNG; the same results give the same bytes.

The colours are those of Okabe and Ito, and two of Paul Tol, which people with any colour vision can distinguish; a peer
has the same colour in all plots. The line of brokerless is the thick one. Runs with a problem have hollow markers or a
mark after their name.
"""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from benchmarks.rows import OURS, common_rate, comparable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.axes import Axes

    from benchmarks.rows import Row

COLOURS: Final = {
    "brokerless": "#0072B2",
    "brokerless-micro-batch": "#56B4E9",
    "brokerless-executors": "#332288",
    "delta-rs": "#009E73",
    "delta-spark-stock": "#D55E00",
    "delta-spark-tuned": "#E69F00",
    "kafka": "#222222",
    "kafka-defaults": "#666666",
    "kafka-realtime": "#882255",
    "kafka-delta": "#CC79A7",
}
MARKERS: Final = {
    "brokerless": "o",
    "brokerless-micro-batch": "p",
    "brokerless-executors": "h",
    "delta-rs": "^",
    "delta-spark-stock": "v",
    "delta-spark-tuned": "D",
    "kafka": "s",
    "kafka-defaults": "d",
    "kafka-realtime": "X",
    "kafka-delta": "P",
}
_OTHER: Final = "#8C6D31"  # for peers that are not in the list above
_PUBLISHED: Final = "#808080"
_DASHES: Final = ("--", ":", "-.")
_FAINT: Final = "#E4E4E4"

_STYLE: Final[dict[Any, Any]] = {
    "svg.hashsalt": "brokerless",  # otherwise ids in the file are random
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "axes.facecolor": "white",
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#666666",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _FAINT,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "legend.frameon": False,
}
_NO_DATES: Final = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}
_NINES: Final = {0.5: "50 %", 0.9: "90 %", 0.99: "99 %", 0.999: "99.9 %", 0.9999: "99.99 %", 0.99999: "99.999 %"}


def render(rows: Sequence[Row]) -> dict[str, bytes]:
    """Return the plots for which there are data, by file name (``benchmark-distribution.svg``, ...)."""
    files = {}
    for name, draw in PLOTS.items():
        with mpl.rc_context():
            mpl.rcdefaults()  # ignore the user's own configuration
            mpl.rcParams.update(_STYLE)
            figure = draw(rows)
            if figure is None:
                continue
            for kind, metadata in _NO_DATES.items():
                out = io.BytesIO()
                figure.savefig(out, format=kind, dpi=144, metadata=metadata)
                files[f"benchmark-{name}.{kind}"] = out.getvalue()
    return files


def distribution(rows: Sequence[Row]) -> Figure | None:
    """Plot the fraction of messages by arrival time, at the rate with most peers."""
    having = [row for row in comparable(rows) if row.typical("cdf")]
    rate = common_rate(having)
    panels = _by_hops([row for row in having if row.one.rate == rate])
    if not panels:
        return None
    figure, axes = _figure(1, len(panels), height=5.0, sharey=True)
    least = 0.1
    for ax, (hops, inside) in zip(axes[0], panels.items(), strict=True):
        for row in inside:
            run = row.typical("cdf")
            assert run is not None
            # The last pair is the maximum, which an axis with equal steps per nine cannot show.
            pairs = [(x, part) for x, part in run.cdf if x > 0 and part < 1] or run.cdf[:1]
            least = min(least, 1 - pairs[-1][1]) or least
            ax.plot([x for x, _ in pairs], [-math.log10(max(1 - part, 1e-9)) for _, part in pairs], **_line(row))
        _log_seconds(ax, "x")
        ax.set_xlabel("latency")
        ax.set_title(f"{_hops(hops)}, {_short(rate)} messages/s")
    ticks = {part: text for part, text in _NINES.items() if 1 - part >= 0.99 * least}
    axes[0][0].set_yticks([-math.log10(1 - part) for part in ticks], list(ticks.values()))
    axes[0][0].set_ylim(0, -math.log10(least) * 1.02)
    axes[0][0].set_ylabel("messages that arrived within it")
    _legend(figure)
    return figure


def over_time(rows: Sequence[Row]) -> Figure | None:
    """Plot the latency during the run, a panel for each peer, at the rate with most peers."""
    having = [row for row in comparable(rows) if row.typical("windows")]
    rate = common_rate(having)
    shown = [row for row in having if row.one.rate == rate]
    if not shown:
        return None
    columns = min(3, len(shown))
    figure, axes = _figure(math.ceil(len(shown) / columns), columns, height=2.4, sharey=True)
    panels = [ax for line in axes for ax in line]
    for ax in panels[len(shown) :]:
        ax.remove()
    for ax, row in zip(panels, shown, strict=False):
        run = row.typical("windows")
        assert run is not None
        middles = [(w.from_s + w.to_s) / 2 for w in run.windows]
        colour = _colour(row)
        p50, p99 = [w.p50_s for w in run.windows], [w.p99_s for w in run.windows]
        ax.fill_between(middles, p50, p99, color=colour, alpha=0.15, linewidth=0)
        ax.plot(middles, p99, color=colour, linewidth=1.2, linestyle=(0, (3, 1.5)))
        ax.plot(middles, p50, color=colour, linewidth=2.2)
        ax.axvspan(0, run.warm_up_s, color="#F2F2F2", zorder=0, linewidth=0)
        ax.set_xlim(0, run.seconds)
        ax.set_title(f"{_name(row)} ({_hops(run.hops)})", color=colour, fontsize=9.5)
        for text, values in (("p99", p99), ("p50", p50)):
            ax.annotate(
                text, (middles[-1], values[-1]), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8
            )
    _log_seconds(panels[0], "y")
    for ax in panels[max(0, len(shown) - columns) : len(shown)]:
        ax.set_xlabel("seconds after the begin")
        ax.tick_params(labelbottom=True)
    figure.suptitle(
        f"Latency during the run at {_short(rate)} messages/s (grey: warm-up)", x=0.01, ha="left", fontsize=11
    )
    return figure


def by_rate(rows: Sequence[Row]) -> Figure | None:
    """Plot the median and p99 against the rate, with published figures of others as a reference."""
    having = [row for row in comparable(rows) if row.median("p50_s") and row.median("p99_s")]
    if len({row.one.rate for row in having}) < 2:
        return None
    commits = {row.one.commit_ms for row in having}
    elsewhere = [row for row in rows if row.one.published and row.one.commit_ms in commits]
    panels = _by_hops(having)
    rates = sorted({row.one.rate for row in [*having, *elsewhere]})
    figure, axes = _figure(len(panels), 2, height=4.0, sharey="row")
    for line, (hops, inside) in zip(axes, panels.items(), strict=True):
        for ax, figure_name, text in zip(line, ("p50_s", "p99_s"), ("median", "p99"), strict=True):
            for style, (label, points) in zip(_DASHES, _by_label(elsewhere).items(), strict=False):
                _published_line(ax, label, [row for row in points if row.median(figure_name)], figure_name, style)
            for points in _by_label(inside).values():
                _rate_line(ax, points, figure_name)
            ax.set_xscale("log")
            ax.xaxis.set_major_locator(FixedLocator(_apart(rates)))
            ax.xaxis.set_minor_locator(NullLocator())
            ax.xaxis.set_major_formatter(FuncFormatter(lambda rate, _: _short(round(rate))))
            _log_seconds(ax, "y")
            ax.tick_params(labelleft=True)
            ax.set_title(f"{text}, {_hops(hops)}")
            ax.set_xlabel("messages a second")
        line[0].set_ylabel("latency")
    _legend(figure)
    return figure


def cost(rows: Sequence[Row]) -> Figure | None:
    """Plot the cost of a million messages against p99; a line joins a peer's rates."""
    having = [row for row in comparable(rows) if row.median("usd_per_million") and row.median("p99_s")]
    panels = _by_hops(having)
    if not panels:
        return None
    figure, axes = _figure(1, len(panels), height=4.6, sharey=True)
    for ax, (hops, inside) in zip(axes[0], panels.items(), strict=True):
        for points in _by_label(inside).values():
            x, y = _medians(points, "p99_s"), _medians(points, "usd_per_million")
            ax.plot(x, y, **_line(points[0], marker=True))
            for row, *point in zip(points, x, y, strict=True):
                _hollow(ax, row, point[0], point[1])
                ax.annotate(
                    _short(row.one.rate),
                    (point[0], point[1]),
                    xytext=(6, 5),
                    textcoords="offset points",
                    fontsize=8,
                    color=_colour(row),
                )
        ax.margins(0.15)
        ax.set_yscale("log")
        _log_seconds(ax, "x")
        ax.yaxis.set_major_locator(_readable(ax.get_ylim()))
        ax.yaxis.set_minor_locator(NullLocator())
        ax.yaxis.set_major_formatter(FuncFormatter(lambda usd, _: f"${usd:g}"))
        ax.tick_params(labelleft=True)
        ax.set_xlabel("p99 latency")
        ax.set_title(f"{_hops(hops)}: cost against latency, by messages/s")
    axes[0][0].set_ylabel("running cost per million messages")
    axes[0][0].annotate(
        "better",
        (0.02, 0.02),
        (0.12, 0.12),
        "axes fraction",
        color="#666666",
        arrowprops={"arrowstyle": "->", "color": "#666666"},
    )
    _legend(figure)
    return figure


PLOTS: Final[dict[str, Callable[[Sequence[Row]], Figure | None]]] = {
    "distribution": distribution,
    "time": over_time,
    "rate": by_rate,
    "cost": cost,
}


def _figure(lines: int, columns: int, *, height: float, **shared: Any) -> tuple[Figure, Any]:
    figure = Figure(figsize=(11.0 if columns > 1 else 7.0, height * lines + 0.4), layout="constrained")
    return figure, figure.subplots(lines, columns, squeeze=False, **shared)


def _rate_line(ax: Axes, points: Sequence[Row], figure: str) -> None:
    spreads = [spread for row in points if (spread := row.spread(figure))]
    x, y = [row.one.rate for row in points], [s.median for s in spreads]
    down, up = [s.median - s.low for s in spreads], [s.high - s.median for s in spreads]
    ax.errorbar(x, y, yerr=[down, up], fmt="none", ecolor=_colour(points[0]), elinewidth=1, capsize=2.5)
    ax.plot(x, y, **_line(points[0], marker=True))
    for row, value in zip(points, y, strict=True):
        _hollow(ax, row, row.one.rate, value)


def _published_line(ax: Axes, label: str, points: Sequence[Row], figure: str, style: str) -> None:
    if not points:
        return
    one = points[0].one
    ax.plot(
        [row.one.rate for row in points],
        _medians(points, figure),
        color=_PUBLISHED,
        linestyle=style,
        linewidth=1.4,
        marker="x",
        markersize=5,
        label=f"{label}: other hardware, {_hops(one.hops)}, {one.pacing}",
        zorder=1,
    )


def _medians(rows: Sequence[Row], figure: str) -> list[float]:
    return [value for row in rows if (value := row.median(figure)) is not None]


def _hollow(ax: Axes, row: Row, x: float, y: float) -> None:
    if not row.clean:
        style = _line(row, marker=True)
        ax.plot([x], [y], **{**style, "label": None, "markerfacecolor": "white", "zorder": style["zorder"] + 0.1})


def _line(row: Row, *, marker: bool = False) -> dict[str, Any]:
    is_ours = row.one.peer == OURS
    return {
        "color": _colour(row),
        "linewidth": 3.2 if is_ours else 1.7,
        "zorder": 3 if is_ours else 2,
        "label": row.one.label if marker else _name(row),
        **({"marker": MARKERS.get(row.one.peer, "*"), "markersize": 7 if is_ours else 6} if marker else {}),
    }


def _colour(row: Row) -> str:
    return COLOURS.get(row.one.peer, _OTHER)


def _name(row: Row) -> str:
    return row.one.label if row.clean else f"{row.one.label} (not clean)"


def _legend(figure: Figure) -> None:
    """Draw one legend for all panels below them: brokerless first, published figures last."""
    entries: dict[str, Any] = {}
    for ax in figure.axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    order = sorted(
        entries, key=lambda label: -entries[label].get_linewidth()
    )  # a stable sort: otherwise in the order of drawing
    wide = max(len(label) for label in order) > 40
    figure.legend(
        [entries[label] for label in order], order, loc="outside lower center", ncols=3 if wide else 4, fontsize=9,
        handlelength=2.4, columnspacing=1.6,
    )  # fmt: skip


def _log_seconds(ax: Axes, axis: str) -> None:
    """Set a logarithmic time axis with units and enough labels."""
    (ax.set_xscale if axis == "x" else ax.set_yscale)("log")
    the_axis = ax.xaxis if axis == "x" else ax.yaxis
    the_axis.set_major_locator(_readable(ax.get_xlim() if axis == "x" else ax.get_ylim()))
    the_axis.set_minor_locator(NullLocator())
    the_axis.set_major_formatter(FuncFormatter(lambda seconds, _: _time(seconds)))


def _readable(limits: tuple[float, float]) -> LogLocator:
    """Return a locator with as many ticks as there is room for labels."""
    decades = math.log10(limits[1] / limits[0])
    subs = (1.0, 2.0, 5.0) if decades < 2 else (1.0, 3.0) if decades < 4 else (1.0,)
    return LogLocator(subs=subs, numticks=30)


def _time(seconds: float) -> str:
    return f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1000:g} ms"


def _apart(rates: Sequence[int]) -> list[int]:
    """Return the rates whose labels do not overlap on a logarithmic axis."""
    chosen: list[int] = []
    for rate in rates:
        if not chosen or rate >= 1.35 * chosen[-1]:
            chosen.append(rate)
    return chosen


def _by_hops(rows: Sequence[Row]) -> dict[int, list[Row]]:
    return {hops: [row for row in rows if row.one.hops == hops] for hops in sorted({row.one.hops for row in rows})}


def _by_label(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return each peer's rows by rising rate; ``rows`` are sorted by rate."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.one.label, []).append(row)
    return found


def _hops(hops: int) -> str:
    return "1 hop" if hops == 1 else f"{hops} hops"


def _short(rate: int | None) -> str:
    if rate is None:
        return ""
    return f"{rate / 1000:g}k" if rate >= 1000 else str(rate)
