"""What makes code that was written for another replay service run on replayd. Quirks live here and not in the core.

`from replayd.compat import reverb` is DeepMind's Reverb; see there.
"""
