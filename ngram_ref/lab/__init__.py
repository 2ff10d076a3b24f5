"""Tools to look at the rest: drawings, timelines, panels, faults, measurements. Nothing imports `lab`."""
