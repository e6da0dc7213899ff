from typing import final

@final
class Layout: ...

@final
class Seen: ...
