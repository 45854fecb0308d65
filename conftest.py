"""For every test of the project: hypothesis judges answers, not how long a busy machine takes for them."""

from hypothesis import settings

settings.register_profile("forerun", deadline=None)
settings.load_profile("forerun")
