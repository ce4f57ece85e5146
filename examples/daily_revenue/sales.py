"""Three days of sales, the same ones every time, as files that a shop drops one after another.

python sales.py .headrace/lake/sales
"""

import json
import random
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

FIRST = datetime(2026, 3, 1, tzinfo=UTC)
REGIONS = ("north", "south", "west")


def sales(count=600, seed=7):
    """Yield sales in the order in which they are reported: some minutes or hours after they were made."""
    chance = random.Random(seed)
    sales = [
        {
            "sale_id": f"s-{number:05}",
            "region": chance.choice(REGIONS),
            "customer_id": f"c-{chance.randrange(80)}",
            "amount": f"{chance.randrange(1, 50_000) / 100:.2f}",
            "sold_at": FIRST + timedelta(seconds=chance.randrange(3 * 86_400)),
        }
        for number in range(count)
    ]
    sales.sort(key=lambda sale: sale["sold_at"] + timedelta(minutes=chance.randrange(600)))
    for sale in sales:
        yield {**sale, "sold_at": sale["sold_at"].isoformat()}


def drop(folder, files=5):
    """Write the sales into files. Each appears atomically: it is written outside the folder and moved into it."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(sale) for sale in sales()]
    for number in range(files):
        part = lines[number * len(lines) // files : (number + 1) * len(lines) // files]
        file = folder.with_name(f"{folder.name}-{number}.new")
        file.write_text("\n".join(part) + "\n")
        file.rename(folder / f"{number}.json")


if __name__ == "__main__":
    drop(Path(sys.argv[1]))
