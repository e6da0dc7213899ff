from typing import final

@final
class Checking: ...
