
# What follows `tc` or `ip`: the program knows.
function __onramp_words
    set -l words (commandline -opc) (commandline -ct)
    switch (basename $words[1])
        case tc ip
            onramp complete (basename $words[1]) $words[2..-1] 2>/dev/null
        case '*'
            $words[1] complete $words[2..-1] 2>/dev/null
    end
end
function __onramp_plays
    set -l words (commandline -opc)
    test (count $words) -ge 2; and contains -- $words[2] tc ip
end
complete -c onramp -n __onramp_plays -f -a '(__onramp_words)'
