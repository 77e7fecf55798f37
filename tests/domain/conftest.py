"""How Hypothesis runs here: no time limit for one example, since a busy machine is no defect."""

from hypothesis import settings

settings.register_profile("fencepost", deadline=None)
settings.load_profile("fencepost")
