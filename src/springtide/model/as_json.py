"""Values of Arrow as JSON has them."""

from __future__ import annotations

import base64
import math
from typing import Any

import pyarrow as pa


def as_json(value: Any, kind: pa.DataType) -> Any:
    """A value as in Spark's JSON: maps are objects, bytes are base64, and NaN and infinities are null."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if pa.types.is_struct(kind):
        return {field.name: as_json(value[field.name], field.type) for field in kind}
    if pa.types.is_map(kind):
        return {str(key): as_json(item, kind.item_type) for key, item in value}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [as_json(item, kind.value_type) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value if isinstance(value, bool | int | float | str) else str(value)
