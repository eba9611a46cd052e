"""The report's style sheet: light and dark, wide and narrow, screen and paper. One string, nothing from outside.

The palette keeps apart under the common colour blindnesses (blue, vermilion, amber, grey differ in lightness too), and
no meaning hangs on colour alone: marks differ in shape, decisions are written out.
"""

from __future__ import annotations

_LIGHT = """
--bg:#fcfcfb;--card:#ffffff;--ink:#1d2126;--soft:#5a626c;--line:#e2e4e7;--faint:#f3f4f5;
--blue:#1f5fa8;--red:#b8431a;--amber:#8a5a00;--good:#0b6b58;--band:#1f5fa81c;
--compute:#2b6cb0;--on-compute:#fff;--copy:#2f7a72;--on-copy:#fff;--host:#6f5f9a;--on-host:#fff;--idle:#c3c8cf;--on-idle:#1d2126;
--comm0:#b84a18;--on-comm0:#fff;--comm1:#e08a2e;--on-comm1:#1d2126;--comm2:#f0b768;--on-comm2:#1d2126;
--comm3:#8f3a12;--on-comm3:#fff;--comm4:#f6d7a8;--on-comm4:#1d2126;
"""

_DARK = """
--bg:#14171b;--card:#1a1e23;--ink:#e6e8ea;--soft:#9aa3ad;--line:#2c323a;--faint:#20252b;
--blue:#7db3ee;--red:#f08a62;--amber:#e5b454;--good:#5fc9ae;--band:#7db3ee22;
--compute:#5593d6;--on-compute:#0d1013;--copy:#6fb8ae;--on-copy:#0d1013;--host:#a596cc;--on-host:#0d1013;--idle:#565e68;--on-idle:#e6e8ea;
--comm0:#e06f3c;--on-comm0:#0d1013;--comm1:#eda24d;--on-comm1:#0d1013;--comm2:#f3c787;--on-comm2:#0d1013;
--comm3:#b5562a;--on-comm3:#fff;--comm4:#f8e0bb;--on-comm4:#0d1013;
"""

_BASE = """
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;
font-variant-numeric:tabular-nums;-webkit-text-size-adjust:100%}
main{max-width:1040px;margin:0 auto;padding:40px 24px 72px}
h1{font-size:clamp(2.1rem,6vw,3.2rem);line-height:1.1;letter-spacing:-.02em;margin:.15em 0 .1em;font-weight:650}
h2{font-size:1.22rem;line-height:1.3;margin:0 0 .5em;font-weight:620}
h3{font-size:1rem;margin:1.6em 0 .4em;font-weight:620}
section{margin-top:52px}
p{margin:.4em 0;max-width:72ch;overflow-wrap:anywhere}
.eyebrow,.soft{color:var(--soft)}
.eyebrow{font-size:.88rem;margin:0;overflow-wrap:anywhere}
.from-to{font-size:1.25rem;font-weight:560;margin:.1em 0 .35em}
.stats{display:grid;grid-template-columns:repeat(auto-fit,minmax(250px,1fr));gap:14px 28px;
margin:26px 0 0;padding:18px 0 0;border-top:1px solid var(--line)}
.stats dt{font-size:.8rem;color:var(--soft)}
.stats dd{margin:0;overflow-wrap:anywhere}
.notice{border-left:4px solid var(--amber);background:var(--faint);padding:10px 16px;margin:22px 0 0;
border-radius:0 6px 6px 0}
.notice p{margin:.1em 0}
ul{padding-left:1.15em;margin:.4em 0}
li{margin:.28em 0;max-width:74ch;overflow-wrap:anywhere}
code,pre,.mono{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;font-size:.86em}
code{overflow-wrap:anywhere}
pre{background:var(--faint);border:1px solid var(--line);border-radius:6px;padding:12px 14px;
white-space:pre-wrap;overflow-wrap:anywhere;line-height:1.5;margin:.5em 0}
table{border-collapse:collapse;width:calc(100% + 16px);margin:0 -8px;font-size:.92rem}
th{font-weight:560;color:var(--soft);text-align:left;font-size:.82rem;vertical-align:bottom}
th,td{padding:8px;border-bottom:1px solid var(--line)}
td{vertical-align:top;overflow-wrap:anywhere}
a{color:var(--blue)}
.num{text-align:right;white-space:nowrap}th.num{white-space:normal}
.scroll{overflow-x:auto;margin:0 -8px}.scroll>table{width:100%;margin:0}
.nowrap{white-space:nowrap}
.name{overflow-wrap:normal;min-width:9em}
td.what{width:42%}
.share{display:inline-block;min-width:2.9em;color:var(--soft)}
.sub{display:block;color:var(--soft);font-size:.87em;margin-top:2px;max-width:62ch}
tr.lead td{background:linear-gradient(var(--band),var(--band))}
tfoot td{font-weight:600;border-bottom:0}
.tag{white-space:nowrap;font-weight:560}
.tag.admit{color:var(--good)}.tag.review{color:var(--amber)}.tag.refuse,.tag.bad{color:var(--red)}
svg.swatch{display:inline-block;margin-right:.55em;vertical-align:-.15em;border-radius:2px}
nav{margin:26px 0 0;padding:12px 0 0;border-top:1px solid var(--line);font-size:.9rem}
nav ul{list-style:none;padding:0;margin:0;display:flex;flex-wrap:wrap;gap:4px 18px}
nav li{margin:0}nav a{display:inline-block;padding:4px 0}
details{margin:.7em 0 0;font-size:.92rem}
summary{cursor:pointer;color:var(--soft);font-size:.85rem;width:fit-content}
summary:hover{color:var(--ink)}
:focus-visible{outline:2px solid var(--blue);outline-offset:3px}
figure{margin:.8em 0 0}
figure+table,figure+.scroll{margin-top:14px}
figure svg{display:block;max-width:100%;height:auto}
svg.narrow{display:none}
.legend{display:flex;flex-wrap:wrap;gap:4px 20px;padding:0;margin:10px 0 0;list-style:none;
color:var(--soft);font-size:.86rem}
.legend li{display:flex;align-items:center;gap:7px;margin:0}
svg text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;font-size:12px;fill:var(--ink)}
svg .tick{fill:var(--soft);font-size:11.5px}
svg .axis-title{fill:var(--soft)}
svg .bar-name{font-weight:560;font-size:13px}
svg .m-label{font-weight:600;fill:var(--blue);paint-order:stroke;stroke:var(--bg);stroke-width:3px}
svg .m-note{fill:var(--soft);font-size:11.5px;paint-order:stroke;stroke:var(--bg);stroke-width:3px}
.grid{stroke:var(--line)}.axis{stroke:var(--soft)}
.band{fill:var(--band)}.base{stroke:var(--soft);stroke-dasharray:5 4}
.best{fill:none;stroke:var(--blue);stroke-width:2}
.m-leader{fill:var(--blue);stroke:var(--bg);stroke-width:1.5}
.m-tried{fill:var(--bg);stroke:var(--blue);stroke-width:1.6}
.m-calibrate{fill:var(--soft)}.m-other{stroke:var(--soft);stroke-width:2.2;stroke-linecap:round}
.m-remeasure{fill:var(--bg);stroke:var(--good);stroke-width:1.8}
.m-refused{fill:var(--bg);stroke:var(--red);stroke-width:1.8}
.m-failed{stroke:var(--red);stroke-width:2.2;stroke-linecap:round;fill:none}
svg .in-bar{font-weight:560;paint-order:stroke;stroke-width:4px;stroke-linejoin:round}
.whisker{stroke:var(--soft);stroke-width:1;opacity:.7}
details>table{margin-top:8px}
"""

_NARROW = """
@media(max-width:640px){
main{padding:24px 16px 48px}
section{margin-top:42px}
svg.wide{display:none}svg.narrow{display:block}
table{width:100%;margin:0}.scroll{margin:0}
th,td{padding:7px 6px}th:first-child,td:first-child{padding-left:0}th:last-child,td:last-child{padding-right:0}
table.cards thead{display:none}
table.cards,table.cards tbody,table.cards tfoot,table.cards tr,table.cards td{display:block;width:100%}
table.cards tr{border-bottom:1px solid var(--line);padding:10px 0}
table.cards tr.lead td{background:none}
table.cards tr.lead{box-shadow:inset 3px 0 0 var(--blue);padding-left:12px}
table.cards td{border:0;padding:2px 0;text-align:left;display:grid;grid-template-columns:8.2em minmax(0,1fr);gap:10px}
table.cards td:empty{display:none}
table.cards td::before{content:attr(data-label);color:var(--soft);font-size:.84rem;white-space:normal}
table.cards td.head{display:block;font-weight:600}
table.cards td.head::before{content:none}
table.cards .sub{font-weight:400}
}
"""

_PRINT = """
@media print{
@page{margin:14mm 12mm}
:root{--bg:#fff}
body{font-size:10pt}
main{max-width:none;padding:0}
section{margin-top:22pt}
nav{display:none}
tr,figure,.notice,.stats{break-inside:avoid}
h2,h3,section>p.soft,summary{break-after:avoid}
table,.scroll>table{font-size:8.5pt;width:100%;margin:0}.scroll{margin:0;overflow:visible}
th,td{padding:3pt 5pt}th{font-size:8pt}
td.num,td.nowrap{white-space:normal}td.num.nowrap,.tag{white-space:nowrap}
td,.name{overflow-wrap:break-word}
td.what{width:34%}
pre{font-size:7.5pt}
svg.wide{display:block}svg.narrow{display:none}
details::details-content{content-visibility:visible;height:auto}
*{-webkit-print-color-adjust:exact;print-color-adjust:exact}
}
"""


def _parts() -> str:
    names = ("compute", "copy", "host", "idle", *(f"comm{n}" for n in range(5)))
    return "".join(
        f".p-{n}{{fill:var(--{n})}}.h-{n}{{stroke:var(--on-{n});fill:none;stroke-width:1.1;opacity:.38}}"
        f"svg .on-p-{n}{{fill:var(--on-{n});stroke:var(--{n})}}"
        for n in names
    )


def css() -> str:
    """Return the whole style sheet. Dark applies to screens only: paper stays white."""
    dark = f"@media screen and (prefers-color-scheme:dark){{:root{{{_DARK}}}}}"
    return f":root{{color-scheme:light dark;{_LIGHT}}}{dark}{_BASE}{_parts()}{_NARROW}{_PRINT}"
