"""The subcommands of `atropos` by name; nothing of them is imported before it is asked for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """A subcommand: a settings class and a function of it, or a command class.

    Attributes:
        settings: Settings class, or subclass of Cmd, as `module:Class`.
        target: Function as `module:function`; takes the settings, returns an exit code or None. None
            where the class runs itself.
        summary: One line for the list of commands.
    """

    settings: str
    target: str | None
    summary: str


COMMANDS: dict[str, Command] = {
    "demo": Command(
        "atroposlib.config.demo:DemoSettings",
        "atroposlib.demo.run:run",
        "Distil a real small teacher into a student on this machine and report it.",
    ),
    "model-server": Command(
        "atroposlib.config.modelserver:ModelServerSettings",
        "atroposlib.modelserver.serve:run",
        "Serve a model over the routes of a vLLM server, on CPU or CUDA.",
    ),
    "api": Command(
        "atroposlib.config.api:ApiSettings",
        "atroposlib.api.serve:run",
        "Serve the trajectory API between environments and trainer.",
    ),
    "token": Command(
        "atroposlib.config.api:TokenSettings",
        "atroposlib.api.tokens:make",
        "Make a token for the trajectory API and print it once.",
    ),
    "doctor": Command(
        "atroposlib.doctor.command:DoctorCommand",
        None,
        "Examine the teacher and student servers of an environment before a run.",
    ),
    "score": Command(
        "atroposlib.config.scoring:ScoreSettings",
        "atroposlib.scoring.run:run",
        "Score the rows of a file with teachers, to be trained on without the trajectory API.",
    ),
    "explain": Command(
        "atroposlib.config.explain:ExplainSettings",
        "atroposlib.explain.run:run",
        "Show how two tokenizers cut a text, side by side, and what cannot be aligned.",
    ),
    "projection build": Command(
        "atroposlib.config.projection:ProjectionBuildSettings",
        "atroposlib.projection.run:run_build",
        "Make the matrix from a student's vocabulary to a teacher's.",
    ),
    "projection inspect": Command(
        "atroposlib.config.projection:ProjectionInspectSettings",
        "atroposlib.projection.run:run_inspect",
        "Print what is in such a matrix.",
    ),
    "train": Command(
        "atroposlib.config.trainer:TrainerSettings",
        "atroposlib.trainer.run:run",
        "Train a student on the groups of the trajectory API.",
    ),
}

LISTINGS: dict[str, str] = {
    "options": "List every option of a command, or of all commands.",
    "errors": "List every error code and what it means.",
    "losses": "Tell what losses `atropos train` has, and when to take which.",
    "metrics": "List every metric of the trajectory API and of teachers.",
}


def members(first: str) -> dict[str, str]:
    """The commands of two words that begin with this one: their summaries by the second word."""
    return {
        name.removeprefix(f"{first} "): command.summary
        for name, command in COMMANDS.items()
        if name.startswith(f"{first} ")
    }
