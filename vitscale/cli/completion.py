"""Completion of commands and options in a shell, as a script without calls of Python."""

from __future__ import annotations

import argparse
import shlex

from vitscale.cli.project import SHIPPED, scripts
from vitscale.cli.script import Parser, add_own_options

OF_STORE = ("plan", "report", "adopt", "compare", "sync", "evaluate", "show")

# words, beside files: options, choices, and the studies of the store where a command reads them
BASH = """_vitscale() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" words=""
  if [ "$COMP_CWORD" -eq 1 ]; then words={commands}; else
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
    case "${{COMP_WORDS[1]}}" in {of_store}) words="$words $(ls runs/studies 2> /dev/null)" ;; esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _vitscale vitscale"""
ZSH = """(( $+functions[compdef] )) || { autoload -U compinit && compinit }
autoload -U +X bashcompinit && bashcompinit
"""
FISH = "complete -c vitscale -n __fish_use_subcommand -f -a {name} -d {help}"
FISH_WORD = "complete -c vitscale -n '__fish_seen_subcommand_from {name}' {word}"
FISH_STUDY = (
    f"complete -c vitscale -n '__fish_seen_subcommand_from {' '.join(OF_STORE)}' "
    "-a '(ls runs/studies 2> /dev/null)'"
)


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """The script for "bash", "zsh" or "fish", of a parser with commands."""
    (parsers,) = (
        action for action in parser._actions if isinstance(action, argparse._SubParsersAction)
    )
    words = {
        name: sorted(word for word in subparser._option_string_actions if word.startswith("--"))
        + [str(word) for action in subparser._actions for word in action.choices or ()]
        for name, subparser in parsers.choices.items()
    }
    studies = Parser()
    add_own_options(studies)
    options = [word for word in studies._option_string_actions if word.startswith("--")]
    for name in ("run", "plan"):  # --scale and --num are parameters of most studies
        words[name] += [*scripts(SHIPPED), *sorted({*options, "--scale", "--num"} - {*words[name]})]
    if shell == "fish":
        helps = {action.dest: action.help or "" for action in parsers._choices_actions}
        lines = []
        for name, own in words.items():
            lines.append(FISH.format(name=name, help=shlex.quote(helps[name])))
            given = (f"-l {word[2:]}" if word.startswith("--") else f"-a {word}" for word in own)
            lines += [FISH_WORD.format(name=name, word=word) for word in given]
        return "\n".join([*lines, FISH_STUDY])
    cases = "\n".join(f'      {name}) words="{" ".join(own)}" ;;' for name, own in words.items())
    commands, of_store = f'"{" ".join(words)}"', "|".join(OF_STORE)
    of_bash = BASH.format(commands=commands, cases=cases, of_store=of_store)
    return (ZSH if shell == "zsh" else "") + of_bash
