"""The board's own style rules, on top of the report's: a wide table that becomes cards, controls, and paper on its side."""

from __future__ import annotations

from attuner.report.style import css

_BOARD = """
main.wide{max-width:1480px}
main.wide h1{font-size:clamp(1.9rem,4.5vw,2.6rem)}
.visually-hidden{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap}
html:not(.js) .needs-js{display:none}
[hidden]{display:none!important}
.controls{display:flex;flex-wrap:wrap;gap:12px 16px;align-items:end;margin:20px 0 6px}
.controls label{display:grid;gap:3px;font-size:.82rem;color:var(--soft);min-width:0}
.controls .grow{flex:1 1 210px}
input[type=search],select,button{font:inherit;font-size:.92rem;color:var(--ink);background:var(--card);
border:1px solid var(--soft);border-radius:6px;padding:6px 10px;min-height:38px;max-width:100%;min-width:0}
input[type=search]{width:100%}
button{cursor:pointer}button:hover{border-color:var(--ink)}
.controls.pair label{flex:1 1 260px}.controls.pair select{width:100%}
#board{font-size:.84rem;margin-top:10px}
#board th,#board td{padding:8px 6px}
#board td.num,#board .tag{white-space:normal}
#board td.gate{min-width:13.4em}#board td.files{min-width:6.4em}
#board td .sub,#board td.files{overflow-wrap:break-word}
#board b,#board .arrow{white-space:nowrap}
#board tbody th .sub{font-weight:400}
#board tbody th{color:var(--ink);font-size:inherit;vertical-align:top;overflow-wrap:anywhere;min-width:9.5em}
#board thead th{position:sticky;top:0;background:var(--bg);z-index:1;box-shadow:inset 0 -1px 0 var(--line)}
#board thead button{border:0;background:none;padding:4px 0;min-height:0;font:inherit;color:var(--soft);text-align:inherit;
border-radius:3px}
#board thead button:hover{color:var(--ink);text-decoration:underline}
#board thead button::after{content:"\\2195";content:"\\2195" / "";margin-left:.3em;opacity:.45}
#board thead [aria-sort]{color:var(--ink);font-weight:650}
#board thead [aria-sort] button{color:var(--ink)}
#board thead [aria-sort=ascending] button::after{content:"\\2191";content:"\\2191" / "";opacity:1}
#board thead [aria-sort=descending] button::after{content:"\\2193";content:"\\2193" / "";opacity:1}
#board .pick{width:32px;padding-left:4px}
.pick label{display:inline-flex;min-width:26px;min-height:26px;align-items:center;justify-content:center;cursor:pointer}
input[type=checkbox]{width:18px;height:18px;margin:0;accent-color:var(--blue)}
.arrow{color:var(--soft)}
#picked{position:sticky;bottom:0;display:flex;flex-wrap:wrap;gap:8px 14px;align-items:center;background:var(--card);
border:1px solid var(--line);border-top:3px solid var(--blue);padding:10px 14px;margin-top:14px;z-index:2}
#picked-names{margin:0;flex:1 1 200px;font-weight:560}
#count{font-size:.88rem;color:var(--soft);margin:0}
#differences th a{color:inherit}
#differences td{width:36%}#differences td.head{width:28%}
main pre{white-space:pre-wrap;overflow-wrap:anywhere}
"""

_NARROW = """
@media(max-width:900px){
#board,#board tbody,#board tr,#board th,#board td{display:block;width:100%}
#board{margin:10px 0 0}
#board thead{display:none}
#board tr{border:1px solid var(--line);border-radius:8px;padding:10px 14px;margin:0 0 12px;background:var(--card);
position:relative}
#board th,#board td{border:0;padding:2px 0;text-align:left;white-space:normal}
#board td{display:grid;grid-template-columns:9.2em minmax(0,1fr);gap:10px}
#board td:empty{display:none}
#board td::before{content:attr(data-label);color:var(--soft);font-size:.84rem}
#board tbody th{font-size:1rem;padding-right:44px}
#board td.pick{position:absolute;right:10px;top:8px;width:auto;display:block;padding:0}
#board td.pick::before{content:none}
html:not(.js) #board td.pick{display:none}
}
@media(min-width:901px){.cards-only{display:none!important}}
@media(max-width:640px){
#differences td{width:100%}#differences td.head{width:100%}
.controls select{width:100%}.controls button{flex:1 1 140px}
.controls label{flex:1 1 140px}
}
"""

_PRINT = """
@media print{
@page{size:landscape}
.controls,#picked,#count,#compare .controls,#board .pick,noscript,.screen{display:none!important}
main.wide{max-width:none}
#board{font-size:7.5pt;width:100%;margin:0}#board th,#board td{padding:3pt}#board thead th{font-size:7pt}
#board tbody th,#board td.files{min-width:0}#board td.gate{min-width:88pt}
#differences{font-size:8.5pt}
table{width:100%;margin:0}
#board thead th{position:static}
#board thead button::after{content:none}
}
"""


def board_css() -> str:
    """Return the whole style sheet of the board's pages."""
    return css() + _BOARD + _NARROW + _PRINT
