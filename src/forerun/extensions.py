"""What other packages add to this one: entry points by group.

    forerun.recipes         NAME = "package"            a recipe, see `runs/recipe.py`
    forerun.commands        NAME = "module:function"    adds commands to the command line: `function(app)`
    forerun.architectures   NAME = "module:function"    counts for the audit, see `audit/architecture.py`

The recipes that ship with this package are found in the same way as those of others.
"""

from functools import cache
from importlib.metadata import EntryPoint, entry_points

from forerun.errors import ExtensionConflict

RECIPES, COMMANDS, ARCHITECTURES = "forerun.recipes", "forerun.commands", "forerun.architectures"


@cache
def extensions(group: str) -> dict[str, EntryPoint]:
    """Entry points of a group by name, in the order of their names; nothing is imported.

    Raises:
        ExtensionConflict: two packages use one name for different things.
    """
    by_name: dict[str, EntryPoint] = {}
    for point in sorted(entry_points(group=group), key=lambda each: each.name):
        other = by_name.setdefault(point.name, point)
        if other.value != point.value:
            raise ExtensionConflict(
                f"Two installed packages bring {group} {point.name!r}: {other.value} and {point.value}. Uninstall one."
            )
    return by_name
