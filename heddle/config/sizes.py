"""Numeric types of config fields, with their bounds."""

from typing import Annotated

from pydantic import Field

Rate = Annotated[float, Field(ge=0.0, lt=1.0)]
# Factors, caps and standard deviations: beyond these bounds, values or gradients do not fit into fp32.
Positive = Annotated[float, Field(ge=1e-6, le=1e6)]
Weight = Annotated[float, Field(ge=0, le=1e6)]  # of a part of the loss
Epsilon = Annotated[float, Field(ge=0, le=1)]
Factor = Annotated[float, Field(ge=1, le=1e6)]
Length = Annotated[int, Field(gt=0, le=2**31)]
Size = Annotated[int, Field(gt=0, le=2**22)]  # of a vector: beyond this, no memory holds a single matrix
Few = Annotated[int, Field(gt=0, le=2**16)]  # of heads, experts, taps
