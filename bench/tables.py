"""Tables in Markdown, of which each says what is asked and marks what misses it."""
import math
import statistics

missed = []						# what has missed what is asked, as text
judged = 0						# of how many figures something is asked


def median(values):
    return statistics.median(values)


def median_and_p99(values):
    return median(values), sorted(values)[math.ceil(len(values) * 0.99) - 1]


class Table:
    """A table whose rows are printed as they come.

    The names of columns of text begin with "-"; the others are of figures.
    """

    def __init__(self, title, *columns):
        print(f"\n### {title}\n")
        print("| " + " | ".join(name.lstrip("-") for name in columns) + " |")
        print("|" + "|".join("---" if name[0] == "-" else "--:" for name in columns)
              + "|", flush=True)
        self.title = title

    def row(self, *cells):
        print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)

    def judge(self, what, value, text, least=None, most=None, over=False):
        """The figure as it is shown: bold if it misses what is asked.

        over tells that the true value is greater than this one.
        """
        global judged

        text = ("> " if over else "") + text
        if least is None and most is None:
            return text
        judged += 1
        if (value >= least) if most is None else (value <= most and not over):
            return text
        missed.append(f"{self.title}: {what}: {text}, asked: "
                      + (f"at most {most:g}" if least is None else f"at least {least:g}"))
        return f"**{text}**"


def print_summary():
    print(f"\n{len(missed)} of {judged} figures miss what is asked"
          + (":" if missed else "."))
    for line in missed:
        print("- " + line)


def limit(value, digits=2, unit=""):
    """What is asked, as it is shown."""
    return "" if value is None else f"{value:.{digits}f}{unit}"
