# What follows `tc` or `ip`: the program knows.
_onramp_words() {
    local program=$1 caller=$2 line
    shift 2
    local -a values shown
    if [[ ${@[-2]} == -b* ]]; then
        _files
        return
    fi
    for line in "${(@f)$("$caller" complete "$program" "$@" 2>/dev/null)}"; do
        [[ -n $line ]] || continue
        values+=("${line%%$'\t'*}")
        shown+=("${line%%$'\t'*}  ${line#*$'\t'}")
    done
    compadd -l -d shown -a values
}

_onramp() {
    local called=${words[1]:t}
    if [[ $called == (tc|ip) ]]; then
        _onramp_words "$called" onramp "${(@)words[2,CURRENT]}"
    elif ((CURRENT > 2)) && [[ ${words[2]} == (tc|ip) ]]; then
        _onramp_words "${words[2]}" "${words[1]}" "${(@)words[3,CURRENT]}"
    else
        _onramp_program "$@"
    fi
}
