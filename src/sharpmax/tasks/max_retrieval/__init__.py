"""Max retrieval: name the class of the item of highest priority, in sets of any size.

Networks that are trained on up to 16 items see them disperse in larger sets, where sharpening
brings the item back.
"""

from sharpmax.tasks.max_retrieval import published
from sharpmax.tasks.max_retrieval.folder import RunFolder
from sharpmax.tasks.max_retrieval.settings import PRESETS, Settings, read_toml, settings_from
from sharpmax.tasks.max_retrieval.study import Study

__all__ = ["PRESETS", "RunFolder", "Settings", "Study", "published", "read_toml", "settings_from"]
