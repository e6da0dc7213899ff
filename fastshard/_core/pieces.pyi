from typing import final

@final
class Pieces:
    def __new__(cls) -> Pieces: ...
