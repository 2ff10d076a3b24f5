"""Fill the README's measured parts from recorded runs, so that no number in it is typed by hand.

usage: python tools/write_readme.py [--check]      (from the repository's root)

Sources: docs/demo.txt (`python -m ngram_ref demo > docs/demo.txt`) and benchmarks/*_cpu.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

README = Path("README.md")


def main() -> int:
    """Write the README, or with `--check` say whether it is what would be written."""
    text = README.read_text("utf-8")
    filled = _fill(_fill(text, "demo output", _demo_part()), "speed", _speed_part())
    if "--check" in sys.argv[1:]:
        if filled != text:
            print("README.md differs from the recorded runs: run python tools/write_readme.py", file=sys.stderr)
        return int(filled != text)
    README.write_text(filled, "utf-8")
    return 0


def _fill(text: str, name: str, part: str) -> str:
    """Replace what stands between the two markers of a part."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    head, rest = text.split(begin)
    return head + begin + part + end + rest.split(end, 1)[1]


def _demo_part() -> str:
    """The demo's first task, its table and what it says of that, as it printed them."""
    demo = Path("docs/demo.txt").read_text("utf-8")
    heading, first = demo.split("\n\n", 1)[0], demo.split("\n\n== ", 1)[1].split("\n\n== ", 1)[0]
    table = demo[demo.rindex("\n\n               accept") + 2 :].strip("\n")
    return f"```text\n{heading}\n\n== {first}\n\n… (three more tasks)\n\n{table}\n```\n"


def _speed_part() -> str:
    """Tables of the recorded benchmarks."""
    decode, core, grammar = (_load(name) for name in ("decode", "core", "grammar"))
    run = decode["run"]
    lines = [
        f"Recorded on {run['date'][:10]}: {run['processor']}, {run['torch_threads']} threads, Python {run['python']}, "
        f"torch {run['torch']}, transformers {run['transformers']}; `{run['command']}` and the two beside it; the "
        "files are in [`benchmarks/`](benchmarks). Medians of interleaved runs, prompt included.",
        "",
        f"| greedy, float32, trees of {decode['num_draft_tokens']} nodes | accept length | plain, tokens/s | "
        "prompt lookup | trees | against plain | against lookup |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *map(_decode_row, decode["tasks"]),
        "",
        "Prompt lookup is `model.generate(prompt_lookup_num_tokens=10)`. The last two tasks are the losing cases. On "
        "an H200 the same tasks give the tokens of `model.generate` in float32, and audits find no error in bfloat16: "
        "[`benchmarks/h200_checks.json`](benchmarks/h200_checks.json).",
        "",
        *_host_lines(decode, core, grammar),
    ]
    return "\n".join(lines) + "\n"


def _load(name: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(Path(f"benchmarks/{name}_cpu.json").read_text("utf-8"))
    return record


def _decode_row(task: dict[str, Any]) -> str:
    rates = task["tokens_per_second"]
    return (
        f"| {task['task']} | {task['accept_length']:.2f} | {rates['plain']:.1f} | {rates['lookup']:.1f} | "
        f"{rates['trees']:.1f} | {task['trees_against_plain']:.2f}× | {task['trees_against_lookup']:.2f}× |"
    )


def _host_lines(decode: dict[str, Any], core: dict[str, Any], grammar: dict[str, Any]) -> list[str]:
    """What the host's part of a step costs."""
    share = max(task["host_share"] for task in decode["tasks"])
    links = {(row["bs"], row["n"]): row for row in core["links"]}
    drafts = [row["draft_us_per_request_bs1"] for row in core["corpus"]]
    learns = [row["learn_us_per_token"] for row in core["corpus"]]
    step = grammar["step"]
    small, large = links[1, 12], links[48, 64]
    return [
        f"The host's work outside the forward is {100 * share:.1f} % of a step at most. Drafting takes "
        f"{min(drafts):.0f} to {max(drafts):.0f} µs a request with 1,000 to 100,000 tokens learned, learning "
        f"{min(learns):.0f} to {max(learns):.0f} µs a token and {core['corpus'][0]['bytes_per_node']:.0f} bytes a trie "
        f"node. Links: {small['vectorized_us']:.0f} µs for one tree of 12 nodes (the scan {small['scan_us']:.0f}), "
        f"{large['vectorized_us']:.0f} µs for 48 of 64 ({large['scan_us']:.0f}). Links and grammar walk for 8 trees of "
        f"16 nodes under a schema of ten fields: {step['native_us']:.0f} µs.",
    ]


if __name__ == "__main__":
    sys.exit(main())
