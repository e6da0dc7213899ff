ROW_BITS: int

def identify_row(
    field: str, sample_id: str, shard: int, offset: int, row: int
) -> int: ...
def find_row(
    field: str, sample_id: object, shard: object, offset: object, value: object
) -> int | None: ...
