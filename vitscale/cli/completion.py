"""Completion of commands and options in a shell, as a script without calls of Python."""

from __future__ import annotations

import argparse
import shlex

# words, beside files: a study is a script, or a folder of the store
BASH = """_vitscale() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" words=""
  if [ "$COMP_CWORD" -eq 1 ]; then words={commands}; else
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
    case "$word" in -*) ;; *) words="$words $(ls runs/studies 2> /dev/null)" ;; esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _vitscale vitscale"""
ZSH = """(( $+functions[compdef] )) || { autoload -U compinit && compinit }
autoload -U +X bashcompinit && bashcompinit
"""
FISH = "complete -c vitscale -n __fish_use_subcommand -f -a {name} -d {help}"
FISH_OPTION = "complete -c vitscale -n '__fish_seen_subcommand_from {name}' -l {option}"
FISH_STUDY = (
    "complete -c vitscale -n 'not __fish_use_subcommand' -a '(ls runs/studies 2> /dev/null)'"
)


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """The script for "bash", "zsh" or "fish", of a parser with commands."""
    (parsers,) = (
        action for action in parser._actions if isinstance(action, argparse._SubParsersAction)
    )
    options = {
        name: sorted(word for word in subparser._option_string_actions if word.startswith("--"))
        for name, subparser in parsers.choices.items()
    }
    if shell == "fish":
        helps = {action.dest: action.help or "" for action in parsers._choices_actions}
        lines = []
        for name, words in options.items():
            lines.append(FISH.format(name=name, help=shlex.quote(helps[name])))
            lines += [FISH_OPTION.format(name=name, option=word[2:]) for word in words]
        return "\n".join([*lines, FISH_STUDY])
    cases = "\n".join(f'      {name}) words="{" ".join(own)}" ;;' for name, own in options.items())
    of_bash = BASH.format(commands=f'"{" ".join(options)}"', cases=cases)
    return (ZSH if shell == "zsh" else "") + of_bash
