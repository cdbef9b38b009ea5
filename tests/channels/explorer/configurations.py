from __future__ import annotations
from functools import partial
from .protocol import *
from .search import Configuration

def world(name, rules, roles, channels, mortal=(), victim=None, survivors=(), **more):
    threads = {r.me: partial(process, rules, r) for r in roles}
    links = []
    if victim:
        threads["supervisor"] = partial(supervisor, rules, victim, survivors)
        links = [link("supervisor", s) for s in survivors]
    variables, cells, ghosts = {}, [], {}
    for c in channels:
        variables[c.head] = 0
        variables[c.space_wanted] = 0
        for r in c.readers:
            variables[c.word(r)] = 0
            ghosts[f"consumed.{c.writer}.{r}"] = 0
        ghosts[f"published.{c.writer}"] = 0
        for cell in c.cells():
            variables[cell] = 0
            cells.append(cell)
    for r in roles:
        variables[bell(r.me)] = 0
    return Configuration(name, threads, variables, cells, [r.me for r in roles], links, ghosts, mortal, **more)

def doorbell(rules, n1=1, n2=1):
    a, b = Channel("A", ("R",), max(n1,1)), Channel("B", ("R",), max(n2,1))
    return world("doorbell", rules, [
        Role("A", outbound=a, addressed=(("R",),)*n1), Role("B", outbound=b, addressed=(("R",),)*n2),
        Role("R", inbound=((a, n1), (b, n2)))], [a, b])

def broadcast(rules, n=2, cap=2):
    a = Channel("W", ("R", "S"), cap)
    return world("broadcast", rules, [Role("W", outbound=a, addressed=(("R","S"),)*n), Role("R", inbound=((a, n),)), Role("S", inbound=((a, n),))], [a])

def full(rules, n=3, cap=1, **k):
    a = Channel("W", ("R",), cap)
    return world("full", rules, [Role("W", outbound=a, addressed=(("R",),)*n, **k), Role("R", inbound=((a, n),))], [a])

from . import spill as S
def spilled(rules, wanted=(True,)*3, cap=1, **k):
    a = Channel("W", ("R",), cap)
    lane = S.Lane(a, wanted, **k)
    variables = {a.head: 0, a.space_wanted: 0, a.word("R"): 0, lane.taken: 0, bell("W"): 0, bell("R"): 0}
    cells = a.cells()
    variables |= {c: 0 for c in cells}
    return Configuration("spill", {"W": partial(S.writer, rules, lane), "R": partial(S.reader, rules, lane)}, variables, cells, ["W", "R"], [lane.link], {})
