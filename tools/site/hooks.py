"""What the site needs beyond mkdocs.yml, so that the documents can stay as they are."""
import pathlib
import posixpath
import re

REFERENCE = "doc/reference.md"


def existing(items, docs):
    """The items of a navigation whose documents exist.  Each is removed from docs."""
    kept = []
    for item in items:
        title, target = next(iter(item.items())) if isinstance(item, dict) else (None, item)
        if isinstance(target, list):
            target = existing(target, docs)
        elif target in docs:
            docs.remove(target)
        else:
            continue
        if target:
            kept.append({title: target} if title else target)
    return kept


def on_config(config):
    """Let the navigation have each document that exists, and none that does not."""
    folder = pathlib.Path(config.docs_dir)
    docs = {file.relative_to(folder).as_posix() for file in folder.rglob("*.md")}
    config.nav = existing(config.nav, docs) + ([{"More": sorted(docs)}] if docs else [])
    return config


def on_page_markdown(markdown, page, **_):
    """Rewrite what a repository's host understands and Python-Markdown does not."""
    if page.file.src_uri == REFERENCE:
        page.meta["search"] = {"boost": 4}      # a name's entry is the first result
    if page.file.src_uri == "README.md":
        page.meta["hide"] = ["navigation"]      # alone in its group
    lines, fenced = [], False
    for line in markdown.split("\n"):
        if re.match(r"\s*```", line):
            # what follows the language is for the tests
            line = re.sub(r"^(\s*```\w*).*", r"\1", line)
            fenced = not fenced
        elif not fenced:
            # a list in a list
            line = re.sub(r"^ {2,3}(?=[-*] |\d+\. )", "    ", line)
        lines.append(line)
    return "\n".join(lines)


def on_page_content(html, page, config, files):
    """Keep only the text of a link to a file that is no page, such as a source file."""
    source = pathlib.Path(config.config_file_path).parent / "src"
    here = posixpath.dirname(page.file.src_uri)

    def unlink(link):
        target = posixpath.normpath(posixpath.join(here, link["target"]))
        is_source = (source / target).exists() and not files.get_file_from_path(target)
        return link["text"] if is_source else link[0]

    return re.sub(r'<a href="(?P<target>[^":#]+)"[^>]*>(?P<text>.*?)</a>', unlink, html,
                  flags=re.DOTALL)
