"""How people are reached: who is told of a request, by which channel, what the message says, and the link that shows and never decides.

May import what lies below the worker. Needs the extra `notify` for the channels of apprise and for links, from when they are used.
"""

from outlast.notify.channel import Channel
from outlast.notify.notifier import Notifier
from outlast.notify.setting import Notify

__all__ = ["Channel", "Notifier", "Notify"]
