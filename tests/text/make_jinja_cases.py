#!/usr/bin/env python3
"""Makes jinja_cases.json: template snippets with what Jinja2 itself renders.

usage: make_jinja_cases.py > jinja_cases.json     (needs jinja2 3.1)
The environment is the one that Hugging Face sets up for chat templates. The outputs are Jinja2's,
never ours. A case is {"template", "expect"} or {"template", "error": name of the exception}.
"""
import datetime
import json

import jinja2
from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

CONTEXT = {
    "s": "Hello World", "e": "", "u8": "naïve Straße 世界 👋", "n": 5, "f": 2.5, "t": True, "no": None,
    "l": [3, 1, 2], "ls": ["b", "A", "c", "a"], "d": {"b": 1, "a": 2, "C": None}, "nest": {"x": {"y": [1, {"z": "deep"}]}},
    "users": [{"name": "Bo", "age": 3, "on": True}, {"name": "al", "age": 7, "on": False}, {"name": "Cy", "age": 3, "on": True}],
    "html": "<b>\"x\" & 'y'</b>", "multi": "one\ntwo\n\nthree\n", "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": None}],
    "quotes": ["it's", 'say "x"', "both ' and \"", "back\\slash", "new\nline", "\x00\x7f\u00ad\u200b\U0001f600"],
    "mixed": [1, 1.0, True, "a", None, [1], {"k": (1)}],
}


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: datetime.datetime(2024, 7, 26, 12, 0, 0).strftime(f)
    return env


EXPRESSIONS = r"""
18446744073709551616 == 18446744073709551616.0 ; 18446744073709551616 == 18446744073709551616 ; 18446744073709551616 < 1 ; 18446744073709551616 > 1 ; 1 < 18446744073709551616 ; -18446744073709551616 < 1 ; 18446744073709551616 < 1.5 ; 18446744073709551616 <= 18446744073709551616 ; 18446744073709551616 > 9.9e30 ; 18446744073709551616|abs ; (-18446744073709551616)|abs ; 18446744073709551616 in [18446744073709551616.0] ; 18446744073709551616.0 in [18446744073709551616] ; {1e20: 1}[100000000000000000000] ; 18446744073709551616|float ; [18446744073709551616,1]|sort ; [18446744073709551616,1]|min ; [-18446744073709551616,1]|max ; (1,18446744073709551616) < (1,2) ; 18446744073709551616 is eq 18446744073709551616.0 ; 18446744073709551616 is lt 5 ; 18446744073709551616|filesizeformat ; 1e400 < 18446744073709551616 ; -18446744073709551616 > -1e400
9007199254740993 == 9007199254740992.0 ; 9007199254740993 > 9007199254740992.0 ; 9223372036854775807 < 9223372036854775808.0 ; 9223372036854775807 == 9223372036854775807.0 ; 3 < 3.5 ; -3 > -3.5 ; 3.5 > 3 ; {1: 'a'}[1.0] ; 1 < 1e400
'٣'|int ; '٣.٥'|float ; '１２'|int ; '١٢٣'|int(base=16) ; '𝟙𝟡'|int ; '²'|int ; '½'|float ; '٣'|filesizeformat ; [1]|filesizeformat ; 'x'|filesizeformat ; undef|truncate(7) ; d|truncate ; 5|truncate ; range(4)|urlencode ; lipsum is defined ; lipsum is callable
1 + 2 * 3 ; 7 // 2 ; -7 // 2 ; 7 // -2 ; -7 % 3 ; 7 % -3 ; 7.5 // 2 ; -7.5 % 2 ; 7.5 % -2 ; 2 ** 10 ; 2 ** -1 ; -2 ** 2 ; 2 ** 3 ** 2 ; 4 / 2 ; 1 / 3 ; 1 / 0 ; 1 % 0 ; 1.0 // 0
1 + 1.0 ; true + true ; 'a' * 3 ; 3 * 'a' ; [1] * 2 ; 'a' * -1 ; 'a' + 'b' ; 'a' + 1 ; [1] + [2] ; (1,) + (2,) ; [1] + (2,) ; 'a' ~ 1 ~ none ~ true ~ 1.5 ~ [1] ; 1 ~ 2 ; none + 1 ; 'a' - 'b' ; 1 - 'a' ; 9223372036854775807 ; 18446744073709551616 ; -9223372036854775808 ; 1_000 ; 0x1F ; 0b101 ; 0o17 ; 1e3 ; 1.5e-7 ; 1E+2 ; 1_0.5
1 < 2 ; 1 < 2 < 3 ; 3 > 2 > 2 ; 1 == 1.0 ; 1 == true ; 'a' < 'b' ; 'a' < 1 ; [1,2] < [1,3] ; (1,2) == [1,2] ; {'a':1} == {'a':1.0} ; none == none ; none < 1 ; 1 != 2 ; 'a' in 'abc' ; '' in '' ; 1 in [1] ; 1 in 'abc' ; 'a' in {'a':1} ; 'a' not in ['b'] ; 1 in none ; [1] in [[1]] ; [1] in {} ; not 1 in [2] ; true and 1 ; 0 or 'x' ; none or false ; not none ; not '' ; 1 and 0 or 2 ; 1 if true ; 1 if false ; 1 if false else 2 ; 'a' if 0 else 'b' if 0 else 'c'
undef ; undef.x ; undef['x'] ; undef == undef ; undef == none ; undef ~ 'a' ; undef + 1 ; not undef ; undef is defined ; undef|length ; undef|list ; undef|upper ; undef|join ; undef|default('d') ; undef|default ; undef() ; undef[0:1] ; -undef ; undef in [1] ; 1 in undef ; undef|int ; undef|float ; undef|string ; undef|tojson ; undef|sort ; undef|first ; undef|last ; undef|items|list ; undef|abs ; undef|sum ; undef|trim ; undef|reverse|list ; undef|map('upper')|list ; undef|e ; undef|safe ; undef|round ; [undef] ; {'a': undef}
no ; no.x ; no.x.y ; no|length ; no|upper ; no|string ; no|list ; no|default('x') ; no|default('x', true) ; no|trim ; no|join ; no|int ; no|float ; no ~ '' ; no|tojson ; no is none ; no[0]
s[0] ; s[-1] ; s[20] ; s[1:4] ; s[:-1] ; s[::-1] ; s[::2] ; s[-3:] ; s[5:2:-1] ; s[10:0:-3] ; s[:100] ; s[100:] ; s[::0] ; s['a'] ; s.x ; s['upper'] is defined ; u8[2] ; u8[-1] ; u8[6:9] ; u8[::-1] ; u8|length ; l[0] ; l[-1] ; l[9] ; l[1:] ; l[::-1] ; l[0:2:2] ; l['x'] ; l.x ; l[none:1] ; l[true] ; (1,2,3)[1:] ; l[1.0] ; d.a ; d['a'] ; d.zz ; d['zz'] ; d.zz.y ; d.C ; d[0] ; nest.x.y[1].z ; nest['x']['y'][0] ; nest.x.y.1.z ; d.items ; range(5)[1:3] ; range(10)[::-2]|list ; range(3)[5] ; 'abc'.1 ; 5 .x ; n.x ; f.is_integer() ; l[] ; {1:2}[1] ; {1:2}[1.0] ; {true:2}[1] ; {(1,2):3}[(1,2)] ; d[[1]]
[] ; [1, 'a', none, true, 1.5] ; (1,) ; () ; (1, 2) ; 1, 2 ; {} ; {'a': 1, 'b': [1, {'c': none}]} ; {1: 2, 'x': 'y'} ; {'a': 1, 'a': 2} ; [[1, 2], [3]] ; {[1]: 2} ; [1,] ; {'a':1,} ; "a" 'b' ; 'a\nb' ; 'a\\b' ; '\x41\u4e16\101' ; 'q\'q' ; "q\"q" ; '\q' ; ['a\nb', "it's", 'q"q', '\'"'] ; quotes ; quotes|string ; mixed ; mixed|string ; u8|list ; [u8] ; 1e16 ; 1e15 ; 0.1 + 0.2 ; 1e-5 ; 0.0001 ; -0.0 ; 1e300 * 1e10 ; 123456789.123456789 ; 3.0 ; 100000000000000000000.0 ; 5e-324
true ; True ; false ; none ; None ; True is true ; 1 is true ; t is boolean
s.upper() ; s.lower() ; s.title() ; s.capitalize() ; s.swapcase() ; s.casefold() ; u8.upper() ; u8.lower() ; u8.title() ; u8.casefold() ; u8.swapcase() ; "they're bill's".title() ; 'ΑΣ ΣΑΣ'.lower() ; 'ǆ'.title() ; 'ﬁ'.upper() ; 'İ'.lower() ; 'a1b'.title() ; 'ÀÉ'.lower() ; 'ß'.capitalize()
'  x '.strip() ; 'xxaxx'.strip('x') ; 'abcab'.strip('ba') ; '  x '.lstrip() ; '  x '.rstrip() ; 'xyx'.lstrip('x') ; 'x\n'.rstrip('\n') ; '\u00a0x\u3000'.strip() ; 'x'.strip(none) ; 'x'.strip(1) ; '世a世'.strip('世')
'a,b,c'.split(',') ; 'a,b,c'.split(',', 1) ; ' a  b '.split() ; ' a  b c '.split(none, 1) ; 'abc'.split('') ; 'a,b,c'.rsplit(',', 1) ; ' a  b  c '.rsplit(none, 1) ; ''.split() ; ''.split(',') ; 'a'.split('b') ; 'a<|x|>b'.split('<|x|>')[-1] ; 'a,b'.split(sep=',') ; 'a,b,c'.split(',', maxsplit=1) ; 'a,,b'.split(',') ; 'a b'.split(' ')
'a\nb\r\nc\rd'.splitlines() ; 'a\n\nb\n'.splitlines(true) ; 'a-b-c'.partition('-') ; 'a-b-c'.rpartition('-') ; 'abc'.partition('x') ; 'abc'.rpartition('x') ; ''.splitlines()
'abc'.startswith('ab') ; 'abc'.startswith(('x','a')) ; 'abc'.endswith('bc') ; 'abc'.startswith('b', 1) ; 'abc'.endswith('b', 0, 2) ; 'abc'.startswith('') ; 'abc'.startswith(1) ; 'abc'.find('c') ; 'abc'.find('x') ; 'abcabc'.rfind('c') ; 'abc'.index('b') ; 'abc'.index('x') ; 'aXbX'.count('X') ; 'aaa'.count('aa') ; 'abc'.count('') ; u8.find('世') ; 'abc'.find('c', -1) ; 'abcabc'.find('a', 1)
'aXbX'.replace('X', '-') ; 'aXbX'.replace('X', '-', 1) ; 'abc'.replace('', '.') ; 'aaa'.replace('aa', 'b') ; 'abc'.replace('b', '') ; 'abc'.replace('b', 1) ; 'é'.replace('', '-') ; 'ab'.replace('', '-', 2)
','.join(['a', 'b']) ; ','.join([1]) ; ''.join('abc') ; ','.join({'a': 1, 'b': 2}) ; ', '.join(['x']) ; '-'.join([])
'abc'.center(9, '*') ; 'abc'.center(8) ; 'ab'.center(5, '*') ; 'abc'.ljust(5) ~ '|' ; 'abc'.rjust(5, '.') ; '42'.zfill(5) ; '-42'.zfill(5) ; 'a\tb'.expandtabs(4) ; 'abc'.removeprefix('a') ; 'abc'.removesuffix('c') ; 'abc'.removeprefix('x')
'abc'.isalpha() ; 'ab1'.isalpha() ; '12'.isdigit() ; '²'.isdigit() ; '½'.isnumeric() ; '12'.isdecimal() ; 'ab1'.isalnum() ; ' \t'.isspace() ; ''.isspace() ; 'ABC'.isupper() ; 'aBC'.islower() ; 'A Title'.istitle() ; 'abc'.isascii() ; 'é'.isascii() ; 'a_1'.isidentifier() ; '1a'.isidentifier() ; 'ab'.isprintable() ; 'a\n'.isprintable() ; '世'.isalpha()
'{} {}'.format(1, 'a') ; '{0}{1}{0}'.format('a', 'b') ; '{x}'.format(x=1) ; '{:>5}|{:<5}|{:^5}'.format('a', 'b', 'c') ; '{:05d}'.format(42) ; '{:.2f}'.format(3.14159) ; '{:,}'.format(1234567) ; '{:x} {:X} {:o} {:b} {:#x}'.format(255, 255, 8, 5, 255) ; '{:e}'.format(12345.678) ; '{:g}'.format(0.0001) ; '{:%}'.format(0.25) ; '{!r}'.format('a') ; '{{}}'.format() ; '{a[b]}'.format(a={'b': 1}) ; '{:*^9}'.format('mid') ; '{:+d}'.format(5) ; '{}'.format() ; '{:s}'.format('x') ; '{:d}'.format('x') ; '{:.3}'.format('abcdef') ; '{:10.3f}|'.format(2.5) ; '{:_}'.format(1000000)  ; '{0[1]}'.format([1, 2])
'%s' % 'a' ; '%s %s' % ('a', 1) ; '%d' % 3.7 ; '%05d' % 42 ; '%5s|%-5s|' % ('a', 'b') ; '%.2f' % 3.14159 ; '%x' % 255 ; '%r' % 'a' ; '%%' % () ; '%(a)s' % {'a': 1} ; '%s' % none ; '%d' % 'x' ; '%s' ; '%s %s' % 'a' ; '%s' % [1, 2] ; '%+d' % 5 ; '%c' % 'x' ; '%e' % 12345.678 ; '%g' % 1e10 ; 'a' % 'b' ; '%5.1f|' % 2.25 ; '%i' % 3 ; '%10s' % '世' ; '%.2s' % 'abc' ; '%#x' % 255 ; '% d' % 5 ; '%s' % (1,)
d.get('a') ; d.get('zz') ; d.get('zz', 'def') ; d.keys() ; d.values() ; d.items() ; d.items()|list ; d.keys()|list ; d.pop('a') ; d.update({'x': 1}) ; d.setdefault('q', 1) ; d.clear() ; l.append(1) ; l.pop() ; l.extend([1]) ; l.sort() ; l.reverse() ; l.index(1) ; l.index(9) ; l.count(3) ; (1, 2).index(2) ; l.copy() ; d.copy() ; l.append is defined ; d.items() is iterable ; d.keys() is sequence ; d|length ; d.items()|length ; 'b' in d.keys() ; 1 in d.values() ; ('b', 1) in d.items() ; d.get([1]) ; (3).bit_length() ; d.keys()|first
l|length ; s|length ; d|count ; 5|length ; l|first ; []|first ; l|last ; ''|last ; s|first ; s|last ; d|first ; l|sort ; ls|sort ; ls|sort(case_sensitive=true) ; ls|sort(reverse=true) ; users|sort(attribute='age')|map(attribute='name')|list ; users|sort(attribute='age,name')|map(attribute='name')|list ; users|sort(attribute='name', reverse=true)|map(attribute='name')|join(',') ; [1,'a']|sort ; l|reverse ; l|reverse|list ; s|reverse ; 5|reverse ; (1,2)|reverse|list ; d|reverse|list ; l|sum ; users|sum(attribute='age') ; [[1],[2]]|sum(start=[]) ; []|sum ; ['a']|sum ; l|min ; l|max ; ls|min ; ls|max(case_sensitive=true) ; users|max(attribute='age') ; []|min ; l|join ; l|join(', ') ; users|join(', ', attribute='name') ; 'abc'|join('-') ; [none, true, 1.5]|join(' ') ; l|join(1)
l|list ; s|list ; d|list ; d|dictsort ; d|dictsort(reverse=true) ; {'b':1,'a':2}|dictsort(by='value') ; {'B':1,'a':2}|dictsort(true) ; {'B':1,'a':2}|dictsort ; d|dictsort(by='x') ; d|items|list ; l|items ; ['a','A','b','a']|unique|list ; ['a','A']|unique(case_sensitive=true)|list ; users|unique(attribute='age')|map(attribute='name')|list ; users|groupby('age') ; users|groupby('age')|map('first')|list ; users|groupby('on', default=true)|length ; [{'k':'a'},{'k':'A'},{'k':'b'}]|groupby('k')|list ; [{'k':'a'},{'k':'A'}]|groupby('k', case_sensitive=true)|list ; [1,2,3,4,5]|batch(2)|list ; [1,2,3]|batch(2, 'x')|list ; [1,2,3,4,5]|slice(3)|list ; [1,2,3,4]|slice(3, 'x')|list ; []|batch(3)|list ; l|slice(2)|map('join','.')|join('|') ; range(3)|list ; range(3) ; range(1,10,3) ; range(1,10,3)|list ; range(5,0,-2)|list ; range(0) ; range(100001) ; range('a') ; range(3)|last ; range(3)|sum ; range(1,2,0) ; range(4)|length ; 2 in range(3)
l|map('string')|list ; ls|map('upper')|join ; users|map(attribute='name')|list ; users|map(attribute='zz')|list ; users|map(attribute='zz', default='q')|list ; [{'a':{'b':1}}]|map(attribute='a.b')|list ; [[1,2]]|map(attribute=1)|list ; [[1,2]]|map(attribute='0')|list ; ls|map('replace','a','x')|list ; l|map|list ; l|map('nofilter')|list ; [1,2]|map('default', 3)|list ; l|select('odd')|list ; l|select|list ; [0,1,none,'']|select|list ; [0,1]|reject|list ; l|reject('odd')|list ; l|select('>', 1)|list ; l|select('gt', 1)|list ; l|select('in', [1,2])|list ; users|selectattr('on')|map(attribute='name')|list ; users|selectattr('age', 'equalto', 3)|list|length ; users|rejectattr('on')|map(attribute='name')|list ; users|selectattr('zz', 'defined')|list ; users|rejectattr('age', 'eq', 3)|list ; users|selectattr('age', '>', 5)|list ; users|selectattr|list ; l|select('notest')|list ; l|select('divisibleby', 3)|list ; (l|map('string')) is iterable ; (l|map('string'))|length ; (l|map('string')) is sequence ; l|map('float')|sum ; ls|map('lower')|sort|join ; d|map('upper')|list ; users|map('attr','name')|list
s|upper ; s|lower ; s|title ; s|capitalize ; 'hello big-world (foo) [bar] a.b x_y'|title ; u8|title ; u8|upper ; '  x '|trim ; 'xax'|trim('x') ; 5|trim ; s|replace('l','L') ; s|replace('l','L',1) ; 5|replace(5,6) ; 'x'|replace('x',none) ; s|center(21) ~ '|' ; 'ab'|center(5) ; s|wordcount ; u8|wordcount ; "it's a-b c_d"|wordcount ; s|string ; 5|string ; l|string ; s|format ; '%s-%s'|format(1,'b') ; '%(a)s'|format(a=3) ; '%s'|format(1,2) ; '%d%%'|format(5)
multi|indent ; multi|indent(2) ; multi|indent(2, true) ; multi|indent(2, blank=true) ; multi|indent('>> ') ; multi|indent(width=3, first=true, blank=true) ; ''|indent ; 'a\n\nb'|indent ; 'a\r\nb'|indent ; 5|indent ; 'a\n'|indent ; 'a\r'|indent ; '\n'|indent(1,true,true)
'foo bar baz qux'|truncate(9) ; 'foo bar baz qux'|truncate(9, true) ; 'foo bar baz qux'|truncate(11) ; 'foo bar baz qux'|truncate(11, false, '...', 0) ; 'foo'|truncate(2) ; 'foobarbazqux'|truncate(5, leeway=0) ; 'foo bar baz qux'|truncate(9, end='~') ; 's' |truncate
'42'|int ; '42.9'|int ; 'x'|int ; 'x'|int(7) ; '0x1F'|int(0,16) ; '1010'|int(base=2) ; 3.9|int ; -3.9|int ; true|int ; none|int(5) ; ' 12 '|int ; '1_000'|int ; '1e3'|int ; '12abc'|int ; [1]|int ; '0b11'|int(0, 2) ; '+5'|int ; '3.5'|float ; 'x'|float ; 'x'|float(1.5) ; 3|float ; 'inf'|float ; 'nan'|float ; '1e5'|float ; [1]|float ; ' 2.5 '|float ; '-7'|int ; 'inf'|int
-5|abs ; 5.5|abs ; (-5.5)|abs ; 'a'|abs ; 2.5|round ; 3.5|round ; 2.675|round(2) ; 42.55|round(1,'floor') ; 42.55|round(1,'ceil') ; 42|round ; 42|round(-1) ; 45|round(-1) ; 1234.5|round(-2) ; 1.5|round(0,'x') ; 42|round(0,'ceil') ; 1e20|round(2) ; -2.5|round ; '1'|round ; 2.5|round|int ; true|round ; 55|round(-1)
100|filesizeformat ; 1000|filesizeformat ; 1|filesizeformat ; 1500000|filesizeformat ; 1048576|filesizeformat(true) ; '2048'|filesizeformat ; 0|filesizeformat ; 3000000000|filesizeformat
html|e ; html|escape ; html|safe ; html|e|e ; html|forceescape ; html|e|forceescape ; (html|safe) ~ '<' ; (html|safe) + '<' ; '<' + (html|safe) ; [html|safe] ; [html|e] ; html|e|upper ; (html|e) is escaped ; html is escaped ; '<i>'|safe|upper ; ('<'|e)|length ; '<p>a <b>c</b>&amp;</p><!-- x -->'|striptags ; 'a b&c/d?é'|urlencode ; {'a':1,'b c':'d e'}|urlencode ; [('a',1)]|urlencode ; {'class':'x','id':none,'t':'<'}|xmlattr ; {'a':1}|xmlattr(false) ; 5|urlencode ; '<'|safe|e
d|tojson ; l|tojson ; s|tojson ; u8|tojson ; u8|tojson(ensure_ascii=true) ; nest|tojson(indent=2) ; nest|tojson(indent=4) ; d|tojson(sort_keys=true) ; d|tojson(separators=(',',':')) ; nest|tojson(indent=2,separators=(',',': ')) ; [1,2]|tojson(indent=0) ; {}|tojson(indent=2) ; []|tojson(indent=2) ; [[],{}]|tojson(indent=1) ; {'a':[]}|tojson(indent='\t') ; quotes|tojson ; html|tojson ; {1:2,none:3,true:4,1.5:5}|tojson ; {(1,2):3}|tojson ; (1,2)|tojson ; range(3)|tojson ; 1e20|tojson ; 1.0|tojson ; 'inf'|float|tojson ; 'nan'|float|tojson ; true|tojson ; mixed|tojson ; d.items()|tojson ; namespace(a=1)|tojson ; '\u2028'|tojson ; '\x7f'|tojson ; '👋'|tojson(true) ; 18446744073709551616|tojson ; d|tojson(false, 2) ; (html|safe)|tojson
5|default(6) ; ''|default('x') ; ''|default('x', true) ; 0|d(1, boolean=true) ; false|default('x') ; d.zz|default('q') ; d.zz.y|default('q') ; none|d('x') ; d|attr('items') is callable ; d|attr('a') is defined ; s|attr('upper') is defined ; [3,1]|pprint ; {'b':1}|pprint ; 'x'|pprint
s|nofilter ; s is notest ; 5|first ; 5|last ; 5|join ; 5|list ; 5|sort ; 5|map('upper')|list ; s|upper(1) ; s|replace ; s|trim(zz=1) ; s|batch
1 is odd ; 2 is even ; 2 is odd ; 9 is divisibleby 3 ; 9 is divisibleby(2) ; 1 is number ; 1.5 is float ; 1 is float ; 1 is integer ; true is integer ; true is number ; 'a' is string ; 5 is string ; d is mapping ; l is mapping ; l is sequence ; d is sequence ; s is sequence ; 5 is sequence ; l is iterable ; s is iterable ; 5 is iterable ; none is iterable ; none is none ; undef is none ; undef is undefined ; undef is not defined ; undef is string ; undef is iterable ; undef is sequence ; undef is mapping ; undef is callable ; range is callable ; s is callable ; 'abc' is lower ; 'ABC' is upper ; 'aB' is lower ; '1' is lower ; 5 is lower ; 1 is sameas 1 ; none is sameas none ; 1 is sameas true ; [] is sameas [] ; 1 is in [1] ; 'a' is in 'abc' ; 1 is not in [1] ; 1 is eq 1 ; 1 is equalto 1 ; 1 is ne 2 ; 1 is lt 2 ; 2 is gt 1 ; 1 is le 1 ; 1 is ge 1 ; 1 is greaterthan 0 ; 1 is lessthan 0 ; 'upper' is filter ; 'zz' is filter ; 'odd' is test ; true is true ; 1 is true ; false is false ; 1 is boolean ; 'a' is odd ; 1.0 is odd ; not 1 is odd ; 1 is not odd ; 1 is odd and 2 is even ; 1 is odd or zz ; d is defined and d.a is defined ; 'x' is string|string ; -1 is odd ; 5 is divisibleby 0 ; range(3) is sequence ; range(3) is iterable ; namespace() is mapping ; (1,2) is sequence
namespace(a=1).a ; namespace(a=1) ; namespace({'a': 1}, b=2).b ; namespace().zz ; dict(a=1, b=2) ; dict({'a':1}, b=2) ; dict([('a', 1)]) ; dict() ; cycler('a','b').next() ; cycler() ; joiner(',')() ; raise_exception('boom') ; strftime_now('%Y-%m-%d %H:%M:%S %j %A %B %a %b %d %y %p %I %% %U %w') ; strftime_now('%d %b %Y') ; strftime_now('') ; strftime_now('%e|%-d|%F|%T|%c|%x|%X|%s' ) is string ; range ; raise_exception() ; zz_undefined_fn(1)
"a" if s else "b" ; (1 if t else 2) + 3 ; [x for x in l] ; l|join(',')|upper ; -l|first ; -n|abs ; -(n|string) ; (-n)|abs ; not t|string ; 1 + 2|string ; 'a' ~ 'b'|upper ; 1 == 1 == true ; 2 > 1 and 3 > 2 ; s.upper().lower().title() ; (s ~ 'x')|upper ; {'a': {'b': 1}}['a']['b'] ; {'a': 1}.a ; [1,2,3][1] ; 'abc'[1] ; (1,2)[0] ; s|upper|lower|length ; l[l|length - 1] ; l[0] if l else 'none' ; messages[0].role ; messages[-1]['content'] ; messages[1].content is none ; messages|map(attribute='role')|join ; messages[0]['content'] + '!' ; messages[1].content + '!' ; messages|selectattr('role','equalto','user')|list|length ; messages[5] ; messages[5].x ; u8.split(' ')[0] ; d['a':'b'] ; 5[0] ; 5 in 5 ; 5() ; s() ; l() ; s.upper.x ; s.__class__ ; s.__class__.__mro__ ; ''.__class__ is defined ; *l ; dict(**d) ; dict(**{'x':1}) ; range(*[1,3])|list ; s.replace(*['H','J']) ; 1..2 ; 'a' 1 ; ) ; 1 + ; {'a' 1} ; [1 2] ; s..x ; | ; a = 1 ; 1 is ; s| ; @ ; 'unclosed ; "a' ; (1 ; s[ ; 1 if ; f(a=1, 2) ; f(**d, a=1)
"""

TEMPLATES = [
    "{% for x in l %}{{ x }}{% if not loop.last %},{% endif %}{% endfor %}",
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }}|{% endfor %}",
    "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }};{% endfor %}",
    "{% for x in l %}{{ loop.cycle('a','b') }}{% endfor %}", "{% for x in [1,1,2] %}{{ loop.changed(x) }}{% endfor %}",
    "{% for x in l if x > 1 %}{{ x }}/{{ loop.length }} {% else %}none{% endfor %}",
    "{% for x in l if x > 9 %}{{ x }}{% else %}none{% endfor %}", "{% for x in l if loop.first %}{{ x }}{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }} {% endfor %}", "{% for k in d %}{{ k }}{% endfor %}", "{% for c in s %}{{ c }}.{% endfor %}",
    "{% for x in none %}{% endfor %}", "{% for x in undef %}a{% else %}b{% endfor %}", "{% for x in 5 %}{% endfor %}", "{% for a, b in [1] %}{% endfor %}",
    "{% for a, b in [(1,2,3)] %}{% endfor %}", "{% for a, (b, c) in [(1,(2,3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "{% for a, in [(1,)] %}{{ a }}{% endfor %}",
    "{% for x in [1,[2,[3]]] recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}@{{ loop.depth }}{% endif %}{% endfor %}",
    "{% for x in l %}{% for y in l %}{{ loop.index }}{% endfor %}-{{ loop.index }} {% endfor %}", "{% for x in l %}{{ loop(x) }}{% endfor %}",
    "{% for x in l %}{% set loop = 5 %}{{ loop }}{% endfor %}", "{% for x in l %}{{ loop }}{% endfor %}", "{% set x = 9 %}{% for x in l %}{% endfor %}{{ x }}",
    "{% for i in range(6) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}{% else %}E{% endfor %}",
    "{% for i in range(3) %}{% for j in range(3) %}{% if j == 1 %}{% break %}{% endif %}{{ i }}{{ j }} {% endfor %}{% endfor %}", "{% break %}", "{% continue %}",
    "{% for i in range(3) %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}",
    "{% set x = 1 %}{% if true %}{% set x = 2 %}{% endif %}{{ x }}", "{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{{ x }}{% endfor %}{{ x }}",
    "{% for i in [1,2,3] %}{{ y }}{% set y = i %}{{ y }}{% endfor %}{{ y }}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a = 1, 2 %}{{ a }}", "{% set a, b = [1] %}{{ a }}",
    "{% set ns = namespace(x=0) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}", "{% set d.x = 1 %}", "{% set ns = namespace() %}{% set ns.y = 'q' %}{{ ns.y }}{{ ns }}",
    "{% set zz.x = 1 %}", "{% set ns = namespace(a=[]) %}{% set ns.a = ns.a + [1] %}{{ ns.a }}", "{% set x %}a{{ 1 }}b{% endset %}[{{ x }}]", "{% set x | upper %}abc{% endset %}{{ x }}",
    "{% set x | replace('a','b') | upper %}aXa{% endset %}{{ x }}", "{% set x %}{% set y = 1 %}{{ y }}{% endset %}{{ x }}{{ y }}", "{% set 5 = 1 %}", "{% set none = 1 %}", "{% set x = %}", "{% set x.y.z = 1 %}",
    "{% if 0 %}a{% elif 0 %}b{% elif 1 %}c{% else %}d{% endif %}", "{% if undef %}a{% else %}b{% endif %}", "{% if undef.x %}a{% endif %}", "{% if l %}y{% endif %}{% if [] %}n{% endif %}", "{% if s == 'Hello World' and n > 3 %}y{% endif %}",
    "{% if 1, %}t{% endif %}", "{% if x if y else z %}{% endif %}",
    "{% macro m(a, b=2, c='z') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}|{{ m(1, 3) }}|{{ m(c=5, a=1) }}|{{ m() }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(z=1) }}",
    "{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(1) }}", "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}", "{% macro m(a) %}{{ a is defined }}{% endmacro %}{{ m() }}", "{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}hi{% endcall %}",
    "{% macro m() %}{{ caller(1, 2) }}{% endmacro %}{% call(a, b) m() %}{{ a }}-{{ b }}{% endcall %}", "{% macro m() %}x{% endmacro %}{% call m() %}hi{% endcall %}", "{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}", "{% macro m() %}{% if caller %}y{% else %}n{% endif %}{% endmacro %}{{ m() }}{% call m() %}{% endcall %}",
    "{% set x = 1 %}{% macro m() %}{{ x }}{% endmacro %}{% set x = 2 %}{{ m() }}", "{% macro m() %}{{ x }}{% endmacro %}{% set x = 2 %}{{ m() }}", "{% macro m() %}{% set q = 1 %}{% endmacro %}{{ m() }}{{ q }}", "{% for i in l %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}", "{% macro m() %}{{ i }}{% endmacro %}{% for i in l %}{{ m() }}{% endfor %}",
    "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}", "{% macro m() %}a{% endmacro %}{{ m }}{{ m.name }}", "{% macro m(a, b=1, c) %}{% endmacro %}", "{% macro a() %}<{% endmacro %}{{ a()|upper ~ a() }}", "{{ m() }}{% macro m() %}x{% endmacro %}", "{% if true %}{% macro m() %}x{% endmacro %}{% endif %}{{ m() }}",
    "{% macro outer() %}{% macro inner() %}i{% endmacro %}{{ inner() }}{% endmacro %}{{ outer() }}", "{% macro m(x) %}{% for y in x %}{{ y }}{% endfor %}{% endmacro %}{{ m(l) }}",
    "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% set a = 5 %}{% with a = 1, b = a %}{{ b }}{% endwith %}", "{% with %}{% set z = 1 %}{{ z }}{% endwith %}{{ z }}", "{% filter upper %}abc{{ s }}{% endfilter %}", "{% filter replace('a', 'b')|upper %}aXa{% endfilter %}", "{% filter indent(2) %}a\nb{% endfilter %}",
    "{% raw %}{{ x }}{% if %}{% endraw %}", "{% raw -%}  a  {%- endraw %}b", "{%- raw %} a {% endraw -%} b", "a {%- raw -%} b {%- endraw -%} c", "{% raw %}\n  a\n  {% endraw %}\nb", "{% raw %}unclosed", "{% autoescape false %}{{ html }}{% endautoescape %}", "{% block x %}a{{ s }}{% endblock %}", "{% block x %}a{% endblock x %}",
    "{% include 'x' %}", "{% import 'x' as y %}", "{% extends 'x' %}", "{% from 'x' import y %}", "{% if false %}{% include 'x' %}{% endif %}ok", "{% do l.append(1) %}", "{% trans %}x{% endtrans %}", "{% zz %}", "{% print 1, 'a' %}",
    "{% generation %}a{{ s }}{% endgeneration %}", "{% for i in l %}{% generation %}{{ i }}{{ loop.index }}{% endgeneration %}{% endfor %}", "{% generation %}{% set q = 1 %}{% endgeneration %}{{ q }}",
    "a\n{% if true %}\nb\n{% endif %}\nc", "a\n  {% if true %}\n  b\n  {% endif %}\nc", "a {% if true %} b {% endif %} c", "a\n  {%- if true %}\nb{%- endif %}\nc", "a  {%- if true -%}  b  {%- endif -%}  c", "  {%+ if true %}x{% endif %}", "{% if true +%}\nx{% endif %}", "  {{ 'x' }}\n  y", "  {{- 'x' -}}  \n y", "a\n\n{{- 'x' }}\n\n",
    "  {# c #}\nx", "a {# c #} b", "a {#- c -#} b", "{# {{ x }} #}y", "{# unclosed", "{#+ c +#}\nx", "\n\n  {% set x = 1 %}  \n{{ x }}\n", "x\n", "x\n\n", "x\r\ny\r", "\r\n{% if 1 %}\r\na\r\n{% endif %}\r\nb", "\t{% if 1 %}\ta{% endif %}", "x\u00a0{%- if 1 %}a{% endif %}", "\u3000{% if 1 %}a{% endif %}",
    "{{ '}}' }}", "{{ '{{' }}{{ \"%}\" }}", "{{ {'a': {'b': 1}} }}", "{{ {'a': {}}}}", "{{-1}}", "{{ -1 }}", "{{- 1 -}}", "{{+1}}", "{{ 1 -}} x", "{% if 1 -%} x {%- endif %} y", "{%if 1%}x{%endif%}", "{{1}}{{2}}", "{{ }}", "{{", "{%", "{% if", "{{ 1", "{{ 1 }", "{% if 1 %}", "{% for x in l %}", "{% endif %}", "{% if 1 %}{% endfor %}", "{% else %}", "{ { 1 } }", "{", "}}", "%}", "#}", "{%}", "a{{ 'b' }}c{{ 'd' }}e", "{{ s }}{# x #}{{ n }}", "{% if true %}{{ '' }}\n{% endif %}\n\n x",
    "{%- for m in messages %}\n{{- '<' + m.role + '>' }}\n{%- if m.content %}{{ m.content }}{% endif %}\n{%- endfor %}\n", "{% for m in messages %}\n{{ m.role }}: {{ m.content }}\n{% endfor %}\n", "{%- set a = 1 -%}\n\n{{ a }}\n  {%- set b = 2 %}\n  {{ b }}",
    "{% if false %}{{ x|nofilter }}{% endif %}ok", "{% for x in [] %}{{ x|nofilter }}{% endfor %}ok", "{{ 'a' if true else x|nofilter }}", "{% if false %}{% for x in [] %}{{ x|nofilter }}{% endfor %}{% endif %}ok", "{% if x is nosuch %}{% endif %}", "{% macro m() %}{{ 1|nofilter }}{% endmacro %}ok",
    "{% set j = joiner('|') %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}", "{% set c = cycler('a','b') %}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.next() }}{% set _ = c.reset() %}{{ c.next() }}", "{% set g = l|map('string') %}{{ g|list }}{{ g|list }}", "{% set g = l|select('odd') %}{% if g %}true{% endif %}{{ g|first }}{{ g|list }}", "{% set x = [1,2] %}{% set y = x %}{% set x = x + [3] %}{{ y }}{{ x }}",
    "{% for g, items in users|groupby('age') %}{{ g }}:{% for i in items %}{{ i.name }}{% endfor %} {% endfor %}", "{% for g in users|groupby('age') %}{{ g.grouper }}:{{ g.list|length }} {% endfor %}", "{% for row in [1,2,3,4,5]|batch(2) %}{% for c in row %}{{ c }}{% endfor %}/{% endfor %}", "{% for k, v in d|dictsort %}{{ k }}{% endfor %}", "{% for x in d.values() %}{{ x }}{% endfor %}", "{% for x in 'ab' recursive %}{{ x }}{% endfor %}",
    "{% set x = 'outer' %}{% for i in [1,2] %}{% if i == 1 %}{% set x = 'inner' %}{% endif %}{{ x }} {% endfor %}{{ x }}", "{% set x = 1 %}{% macro m(x) %}{{ x }}{% set x = 5 %}{{ x }}{% endmacro %}{{ m(2) }}{{ x }}", "{% set f = s.upper %}{{ f() }}", "{% set r = range %}{{ r(3)|list }}", "{% set range = 5 %}{{ range }}", "{% set namespace = 1 %}{{ namespace }}", "{% if range is defined %}{{ range(2)|list }}{% endif %}", "{{ messages is defined }}{% if false %}{% set messages = 1 %}{% endif %}{{ messages|length }}",
    "{% set first = true %}{% for m in messages %}{% if first %}F{% set first = false %}{% endif %}{% endfor %}", "{{ raise_exception('x ' ~ n) }}", "{% if true %}{{ raise_exception('in if') }}{% endif %}", "{% set x = undef %}{{ x is defined }}{{ x }}", "{% macro m(x=undef) %}{{ x is defined }}{% endmacro %}{{ m() }}", "{% set t = (1, 'a') %}{{ t }}{{ t[1] }}", "{% for a in (1, 2) %}{{ a }}{% endfor %}", "{% for x in 1, 2 %}{{ x }}{% endfor %}", "{% for i in range(3) %}{% set o %}{{ loop.index }}{% endset %}{{ o }}{% endfor %}", "{% call undefm() %}x{% endcall %}", "{% call 5 %}x{% endcall %}", "{% filter nofilter %}x{% endfilter %}", "{% macro m() %}{{ caller('x') }}{% endmacro %}{% for i in l %}{% call(q) m() %}{{ q }}{{ i }}{% endcall %}{% endfor %}",
    "{% for x in l %}{{ x }}{% set ns2 = namespace(v=x) %}{{ ns2.v }}{% endfor %}{{ ns2 }}", "{% with x = 1 %}{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% endwith %}", "{{ loop is defined }}", "{% for x in l recursive %}{{ loop.depth }}{% endfor %}", "{% for k, v in nest.x.items() recursive %}{{ k }}{% endfor %}", "{% for x in l -%}\n  {{ x }}\n{%- endfor %}", "{%- for x in l %}  {{- x }}\n{%- else %}none{% endfor %}",
]


def main():
    env = environment()
    texts = ["{{ " + e.strip() + " }}" for line in EXPRESSIONS.strip().split("\n") for e in line.split(" ; ")] + TEMPLATES
    cases = []
    for text in dict.fromkeys(texts):
        try:
            out = env.from_string(text).render(**CONTEXT)
        except Exception as fault:  # whatever Python raises is the outcome
            cases.append({"template": text, "error": type(fault).__name__, "message": str(fault)})
            continue
        if " at 0x" not in out and "<function" not in out and "<class" not in out:
            cases.append({"template": text, "expect": out})
    print(json.dumps({"oracle": f"jinja2 {jinja2.__version__}", "context": CONTEXT, "cases": cases}, indent=0, ensure_ascii=True))


if __name__ == "__main__":
    main()
