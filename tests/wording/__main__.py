"""``python -m tests.wording``: prints rates of phrases and variable names, and fails above their limits."""

import sys

from tests.wording.rates import Rate, rates, variables


def main() -> int:
    wrong = 0
    for title, table in (("in 10,000 words", rates()), ("in 1,000 functions", variables())):
        print(f"{title:42} {'count':>6} {'rate':>6} {'limit':>6}")
        for row in table:
            wrong += _line(row)
    return int(wrong > 0)


def _line(row: Rate) -> bool:
    is_over = row.rate > row.limit
    print(f"{row.name:42} {row.count:6} {row.rate:6.1f} {row.limit:6.1f}{'  too many' * is_over}")
    return is_over


sys.exit(main())
