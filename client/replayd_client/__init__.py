"""Python client of replayd, the experience replay daemon."""
