"""The configuration of a Buildbot master with a worker in its own process; master.cfg is a copy of it."""

import os

from buildbot.plugins import schedulers, steps, util, worker


def builder(name, description, *made_of):
    factory = util.BuildFactory([steps.ShellCommand(name=name, command=command) for command in made_of])
    return util.BuilderConfig(
        name=name, workernames=["here"], factory=factory, description=description, tags=["tea"]
    )


CUPS = util.IntParameter(name="cups", label="Cups", tooltip="How many.", default=2)
SORT = util.ChoiceStringParameter(name="sort", label="Sort", choices=["Assam", "Darjeeling"], default="Assam")
WORDS = util.StringParameter(name="words", label="Words", required=True, regex="^[^!]*$")

c = BuildmasterConfig = {
    "workers": [worker.LocalWorker("here", max_builds=4)],
    "protocols": {"null": {}},
    "builders": [
        builder("brew", "Brews tea.", ["echo", util.Interpolate("%(prop:cups)s cups of %(prop:sort)s")]),
        builder(
            "spill",
            "Fails with the words that it is given.",
            ["sh", "-c", 'echo "$0"; exit 3', util.Property("words")],
        ),
        builder("steep", "Takes ten minutes.", ["sleep", "600"]),
        builder("pour", "Is started by other builders only.", ["true"]),
    ],
    "schedulers": [
        schedulers.ForceScheduler(name="force-brew", builderNames=["brew"], properties=[CUPS, SORT]),
        schedulers.ForceScheduler(name="force-spill", builderNames=["spill"], properties=[WORDS]),
        schedulers.ForceScheduler(name="force", builderNames=["steep"]),
        schedulers.Triggerable(name="triggered", builderNames=["pour"]),
    ],
    "www": {"port": f"tcp:{os.environ['MASTER_PORT']}:interface=127.0.0.1", "plugins": {}},
    "buildbotURL": f"http://127.0.0.1:{os.environ['MASTER_PORT']}/",
    "buildbotNetUsageData": None,
    "db": {"db_url": "sqlite:///state.sqlite"},
}
