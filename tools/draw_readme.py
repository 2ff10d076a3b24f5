"""Draw the README's picture: one recorded step of the demo's first task.

usage: python tools/draw_readme.py docs/step.svg
"""

from __future__ import annotations

import sys
from pathlib import Path

import ngram_ref as nr
from ngram_ref.lab.demo import origin_of_tokens
from ngram_ref.lab.tasks import TASKS
from ngram_ref.lab.viz import TreeView, same_nodes_figure, token_texts


def main(path: Path) -> None:
    """Decode, choose the first step that accepts several drafts where the tree branches, draw it."""
    model, tokenizer = nr.load_model(device="cpu")
    draft = nr.DraftConfig(num_draft_tokens=12)
    result = nr.generate(model, tokenizer, TASKS[0].chat, max_new_tokens=160, draft=draft, record_steps=True)[0]
    branching = (
        index
        for index, step in enumerate(result.steps)
        if 3 <= len(step.accepted) <= 6 and max(step.parents.count(node) for node in step.accepted) > 1
    )
    index = next(branching)
    step = result.steps[index]
    view = TreeView(
        token_texts(tokenizer, step.tokens),
        step.parents,
        prefix_length=step.seq_len,
        accepted=step.accepted,
        bonus=origin_of_tokens(tokenizer, result)[index].bonus,
    )
    caption = f"Step {index + 1} of {result.num_steps}"
    path.write_text(same_nodes_figure(view, caption, highlight=step.accepted[-1]).svg + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
