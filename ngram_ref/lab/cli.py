"""The command line: `python -m ngram_ref demo | generate | fetch-model`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from ngram_ref.core.config import DraftConfig
from ngram_ref.engine.batch import Result
from ngram_ref.engine.default_model import DEFAULT_MODEL, fetch_default_model
from ngram_ref.engine.generate import generate
from ngram_ref.engine.models import load_model
from ngram_ref.engine.target import Target
from ngram_ref.grammar.compile import Grammar, ebnf, json_schema, regex
from ngram_ref.lab.demo import origin_of_tokens, run_demo
from ngram_ref.lab.viz.terminal import BRACKETS, COLOURS, Marks, tokens_terminal


class _OneLineParser(argparse.ArgumentParser):
    """An argument parser that answers a wrong argument with one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: as on the command line, without the program's name; `sys.argv[1:]` by default.

    Returns:
        The exit status: 0, or 2 where an argument cannot work or something needed is not there (one line on stderr).
    """
    options = _parser().parse_args(arguments)
    try:
        status: int = options.run(options)
    except (ValueError, OSError, RuntimeError) as error:
        print(f"ngram-ref {options.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return status


def _parser() -> argparse.ArgumentParser:
    """Build the parser of all commands."""
    parser = _OneLineParser(prog="ngram-ref", description="N-gram speculative decoding over token trees.")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_OneLineParser)

    demo = commands.add_parser("demo", help="decode a few tasks with and without n-gram trees, and compare")
    _add_model_options(demo)
    _add_draft_options(demo, names=("num_draft_tokens",))
    demo.set_defaults(run=_demo)

    decode = commands.add_parser("generate", help="decode prompts of your own")
    decode.add_argument("--prompt", action="append", required=True, metavar="TEXT", help="may be given several times")
    decode.add_argument("--raw", action="store_true", help="take prompts as they are, without the chat template")
    decode.add_argument("--max-new-tokens", type=int, default=128, metavar="N", help="at most, per prompt (128)")
    decode.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end a text before this string")
    forms = decode.add_mutually_exclusive_group()
    forms.add_argument("--origins", action="store_true", help="mark which tokens were drafted")
    forms.add_argument("--json", action="store_true", help="print one JSON object per prompt, a line each")
    _add_grammar_options(decode)
    _add_model_options(decode)
    _add_draft_options(decode, names=tuple(_DRAFT_OPTIONS))
    decode.set_defaults(run=_generate)

    fetch = commands.add_parser("fetch-model", help="download and convert the default model, and say where it is")
    fetch.set_defaults(run=_fetch_model)
    return parser


def _add_grammar_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that name a grammar, of which one may be given."""
    grammars = parser.add_mutually_exclusive_group()
    grammars.add_argument("--json-schema", type=Path, metavar="FILE", help="constrain texts to JSON by this schema")
    grammars.add_argument("--regex", metavar="PATTERN", help="constrain texts to this regular expression")
    grammars.add_argument("--ebnf", type=Path, metavar="FILE", help="constrain texts to these EBNF rules (root ::= …)")
    parser.add_argument(
        "--allow-unenforced", action="store_true", help="take a schema with keywords that cannot be enforced"
    )


def _grammar(options: argparse.Namespace) -> Grammar | None:
    """Make the grammar that the options name."""
    if options.allow_unenforced and options.json_schema is None:
        raise ValueError("--allow-unenforced needs --json-schema: other grammars are enforced as a whole")
    if options.json_schema is not None:
        return json_schema(options.json_schema.read_text("utf-8"), allow_unenforced=options.allow_unenforced)
    if options.regex is not None:
        return regex(options.regex)
    return None if options.ebnf is None else ebnf(options.ebnf.read_text("utf-8"))


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which model runs where."""
    parser.add_argument("--model", metavar="NAME", help="hub id, folder or .gguf file (SmolLM2-135M-Instruct)")
    parser.add_argument("--device", metavar="DEVICE", help="cpu, cuda, cuda:1 … (CUDA where there is one)")
    parser.add_argument("--dtype", metavar="DTYPE", help="float32, bfloat16, float64 (float32 on a CPU, else bfloat16)")


_DRAFT_OPTIONS: dict[str, str] = {
    "num_draft_tokens": "nodes of a tree, the root included; 1 is plain decoding",
    "max_trie_depth": "longest n-gram kept",
    "min_bfs_breadth": "children followed below the longest match",
    "max_bfs_breadth": "children followed below the shortest match",
    "match_type": "BFS (recency) or PROB (frequency)",
    "capacity": "largest number of trie nodes",
}


def _add_draft_options(parser: argparse.ArgumentParser, names: Sequence[str]) -> None:
    """Add options of `DraftConfig`, with its defaults."""
    for name in names:
        default = getattr(DraftConfig, name)
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=type(default),
            default=default,
            metavar=type(default).__name__.upper(),
            help=f"{_DRAFT_OPTIONS[name]} ({default})",
        )


def _draft_config(options: argparse.Namespace) -> DraftConfig:
    """Collect the draft options that a command has."""
    return DraftConfig(**{name: getattr(options, name) for name in _DRAFT_OPTIONS if hasattr(options, name)})


def _load(options: argparse.Namespace) -> tuple[Any, Any]:
    """Load the model that the options name."""
    return load_model(options.model, device=options.device, dtype=options.dtype)


def _demo(options: argparse.Namespace) -> int:
    """Run the demo."""
    draft = _draft_config(options)
    model, tokenizer = _load(options)
    run_demo(options.model or DEFAULT_MODEL, Target(model), tokenizer, draft.num_draft_tokens, print, _marks())
    return 0


def _generate(options: argparse.Namespace) -> int:
    """Decode the prompts given."""
    draft, grammar = _draft_config(options), _grammar(options)
    model, tokenizer = _load(options)
    is_chat = not options.raw and tokenizer.chat_template is not None
    prompts = [[{"role": "user", "content": text}] if is_chat else text for text in options.prompt]
    results = generate(
        model,
        tokenizer,
        prompts,
        max_new_tokens=options.max_new_tokens,
        draft=draft,
        grammar=grammar,
        stop=options.stop,
        record_steps=options.origins,
    )
    for result in results:
        if options.json:
            print(json.dumps(_as_json(result), ensure_ascii=False))
        else:
            _show(result, tokenizer)
    return 1 if any(result.error for result in results) else 0


def _show(result: Result, tokenizer: Any) -> None:
    """Print a result for people: the text on stdout, what it took on stderr."""
    print(result.text if result.steps is None else tokens_terminal(origin_of_tokens(tokenizer, result), _marks()))
    print(
        f"-- {len(result.token_ids)} tokens, {result.num_steps} steps, accept length {result.accept_length:.2f}, "
        f"ended by {result.finish_reason}{': ' + result.error if result.error else ''}",
        file=sys.stderr,
    )
    for gap in result.unenforced:
        print(f"-- not enforced: {gap}", file=sys.stderr)


def _as_json(result: Result) -> dict[str, Any]:
    """A result as JSON values."""
    names = ("text", "token_ids", "finish_reason", "num_steps", "accept_length", "accept_rate", "error")
    return {name: getattr(result, name) for name in names} | {"unenforced": [str(gap) for gap in result.unenforced]}


def _fetch_model(options: argparse.Namespace) -> int:
    """Fetch the default model."""
    print(fetch_default_model())
    return 0


def _marks() -> Marks:
    """Colours on a terminal, unless NO_COLOR is set (https://no-color.org); else brackets."""
    return COLOURS if sys.stdout.isatty() and not os.environ.get("NO_COLOR") else BRACKETS
