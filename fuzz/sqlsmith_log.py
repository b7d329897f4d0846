#!/usr/bin/env python3
"""Judge a server log that sqlsmith has left (in JSON): sqlsmith_log.py SOURCES LOG...

Prints which errors there were, and how often, then what is wrong: a crash, an internal
error that the extension has to do with, or one of its own that doc/reference.md does not list.
Exits with status 1 if anything is.
"""

import collections
import json
import pathlib
import re
import sys

CRASH = re.compile(r"terminated by signal|^TRAP:|was terminated")


def documented(root):
    """The SQLSTATEs in the reference's table of errors"""
    table = (root / "doc/reference.md").read_text().partition("\n## Errors\n")[2].partition("\n## ")[0]
    return {
        code
        for row in re.findall(r"^\| ([0-9A-Z, ]+) \|", table, re.M)
        for code in row.split(", ")
    }


def functions(root):
    """By source file, the functions that it defines: the server has files of the same names"""
    return {
        file.name: set(re.findall(r"^(\w+)\(", file.read_text(), re.M))
        for file in (root / "src").glob("*.c")
    }


def entries(files):
    for file in files:
        for line in pathlib.Path(file).read_text(errors="replace").splitlines():
            if line.startswith("{"):
                yield json.loads(line)
            elif CRASH.search(line):
                yield {"error_severity": "PANIC", "message": line}


def main():
    root = pathlib.Path(sys.argv[1])
    listed = documented(root)
    own = functions(root)
    seen = collections.Counter()
    wrong = collections.Counter()
    if not listed:
        sys.exit("no errors are listed in doc/reference.md")

    for entry in entries(sys.argv[2:]):
        severity = entry.get("error_severity", "")
        message = entry.get("message", "")
        code = entry.get("state_code", "")
        ours = entry.get("func_name") in own.get(entry.get("file_name"), ())
        where = f"{entry.get('func_name')}, {entry.get('file_name')}:{entry.get('file_line_num')}"
        about_us = ours or re.search(r"\ble_\w+", message + entry.get("context", ""))
        if severity == "PANIC" or CRASH.search(message):
            wrong[f"crash: {message}"] += 1
        if severity in ("ERROR", "FATAL"):
            seen[code, "the extension" if ours else "the server"] += 1
            if code.startswith("XX") and about_us:
                wrong[f"internal error {code}: {message} ({where})"] += 1
            elif ours and code not in listed:
                wrong[f"not in doc/reference.md: {code}: {message} ({where})"] += 1
        elif severity in ("WARNING", "LOG") and "could not bring the registry up to date" in message:
            wrong[f"{message} ({where})"] += 1

    for (code, source), count in sorted(seen.items(), key=lambda item: (item[0][1], item[0][0])):
        print(f"{code} from {source}: {count}")
    for what, count in wrong.items():
        print(f"WRONG, {count} times: {what}")
    if not seen:
        print("WRONG: no error is in the log, which cannot be")
    sys.exit(bool(wrong) or not seen)


if __name__ == "__main__":
    main()
