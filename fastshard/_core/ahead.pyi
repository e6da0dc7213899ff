from typing import final

from fastshard._core.taking import Taking

@final
class Run: ...

@final
class Waiting: ...

@final
class OwnChunks: ...

@final
class Ahead(Taking): ...
