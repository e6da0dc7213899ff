from typing import Self, final

@final
class Part: ...

@final
class Behind:
    def __new__(cls, most: int) -> Self: ...
