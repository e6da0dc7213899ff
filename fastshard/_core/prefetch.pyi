from typing import final

@final
class Prefetcher:
    def __new__(cls) -> Prefetcher: ...
