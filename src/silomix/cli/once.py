"""Commands that refuse an option given twice, of which the last would count in silence."""

from collections import Counter
from typing import Any

import typer
from typer.core import TyperCommand, TyperOption


class OnceCommand(TyperCommand):
    """A command whose options stand on the line once, unless they are made to be repeated."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the line, and complain of what stands there twice."""
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for parameter, times in Counter(order).items():
            if times == 1 or not isinstance(parameter, TyperOption):
                continue
            if not parameter.multiple and not parameter.is_flag:
                raise typer.BadParameter(
                    f"given {times} times; give it once, a list as a,b,c", ctx, parameter
                )
        return super().parse_args(ctx, args)
