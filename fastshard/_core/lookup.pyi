from array import array

from fastshard._core.extents import ExtentTable

def find_all(names: ExtentTable, wanted: list[str], suffix: str) -> array[int]: ...
