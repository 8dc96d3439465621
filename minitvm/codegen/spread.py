"""What templates take from :mod:`minitvm.codegen.loops`."""

from minitvm.codegen.loops import in_lanes as in_lanes
from minitvm.codegen.loops import in_vectors as in_vectors
from minitvm.codegen.loops import unflatten as unflatten
