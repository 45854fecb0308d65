import pytest

from forerun.recipes.code_detector.data.normalise import normalise_code


def test_python_formatting_comments_and_docstrings_vanish():
    loose = 'def f( a,b ):\n\t"""Say."""\n\t# note\n\n\treturn {"k":a+b}   \n'
    tight = "def f(a, b):\n    return {'k': a + b}"
    assert normalise_code(loose, "python") == normalise_code(tight, "python") == tight


def test_python_body_of_only_a_docstring_stays_valid():
    assert normalise_code('class A:\n    """Only words."""\n', "python") == "class A:\n    pass"


def test_unparsable_python_loses_only_whitespace_and_comments():
    code = "print 'a # b'  # say\n\n\tx = 1 \n"
    assert normalise_code(code, "python") == "print 'a # b'  \n    x = 1".replace("  \n", "\n")


@pytest.mark.parametrize("language", ["java", "cpp"])
def test_brace_languages_are_laid_out_one_statement_a_line(language):
    loose = "int f(){for(int i=0;i<9;++i){g(i);} // done\n/* all\n of it */return 0;}"
    expected = "int f ( ) {\n    for ( int i = 0 ; i < 9 ; ++ i ) {\n        g ( i ) ;\n    }\n    return 0 ;\n}"
    assert normalise_code(loose, language) == expected
    assert normalise_code(expected, language) == expected


def test_package_lines_and_comment_marks_in_strings():
    code = 'package a.b;\nclass A { String s = "// not a comment"; }'
    assert normalise_code(code, "java") == 'class A {\n    String s = "// not a comment" ;\n}'


def test_directives_keep_their_line():
    assert normalise_code("#include   <vector> // all\n#define A(x) \\\n  (x)\nint a;", "cpp") == (
        "#include <vector>\n#define A(x) \\ (x)\nint a ;"
    )


def test_a_block_inside_an_argument_is_laid_out_too():
    assert normalise_code("sort(a,(x,y)->{int d=x;return d;});", "java") == (
        "sort ( a , ( x , y ) -> {\n    int d = x ;\n    return d ;\n}\n) ;"
    )


def test_null_bytes_and_deep_nesting_fall_back():
    assert normalise_code("a = 1\x00", "python") == "a = 1\x00"
    deep = "(" * 3000 + ")" * 3000
    assert normalise_code(deep, "python") == deep
