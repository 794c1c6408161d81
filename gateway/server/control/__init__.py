"""The control listener. Its modules say one thing each; this page has what others build on."""

from gateway.server.control.access import ApiToken, Authorise
from gateway.server.control.application import Control
from gateway.server.control.documents import json_answer, number
from gateway.server.control.health import Readiness
from gateway.server.control.problems import Problem

__all__ = ["ApiToken", "Authorise", "Control", "Problem", "Readiness", "json_answer", "number"]
