"""`python -m tests.checker HISTORY`: judge a history in JSON lines; status 1 if a guarantee is broken."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.checker.history import parse
from tests.checker.judge import judge


def main(path: str) -> int:
    texts = Path(path).read_text().splitlines()
    violations = judge(parse(texts))
    for violation in violations:
        print(violation)
        for number in sorted(set(violation.lines)):
            print(f"  {number:6}  {texts[number - 1]}")
    print(f"{len(texts)} lines, {len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
