"""How costs grow, drawn as SVG that can be read on light and on dark pages."""
import os

GREY = "#808080"				# text and axes, on white and on black


def plot(directory, name, xlabel, ylabel, yscale, xs, lines):
    """Draw lines, a dictionary of their names, over the same xs on a logarithmic axis."""
    import matplotlib
    matplotlib.use("svg")
    from matplotlib import pyplot, ticker

    pyplot.rcParams.update({
        "svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif",
        "text.color": GREY, "axes.labelcolor": GREY, "axes.edgecolor": GREY,
        "xtick.color": GREY, "ytick.color": GREY, "grid.color": GREY, "grid.alpha": 0.3,
        "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    for label, ys in lines.items():
        axes.plot(xs, ys, marker="o", label=label)
    axes.set_xscale("log")
    if yscale == "log":
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5), numticks=30))
    else:
        axes.set_ylim(bottom=0)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.set_xticks(xs)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(ticker.StrMethodFormatter("{x:,.6g}"))
        axis.set_minor_locator(ticker.NullLocator())
    axes.grid(True)
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, 1.15),
                ncol=len(lines))
    figure.savefig(os.path.join(directory, name + ".svg"), transparent=True,
                   bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)
