
# What follows `tc` or `ip`: the program knows. Colons part words for bash, but not for tc.
_onramp_words() {
    local program=$1 first=$2 caller=$3
    local line=${COMP_LINE:0:COMP_POINT} words word rest current common=""
    read -ra words <<<"$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    current=${words[${#words[@]} - 1]}
    COMPREPLY=()
    if [[ ${words[${#words[@]} - 2]} == -b* ]]; then
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
        return
    fi
    [[ $current == *:* ]] && common=${current%"${current##*:}"}
    while IFS=$'\t' read -r word rest; do
        COMPREPLY+=("${word#"$common"}")
    done < <("$caller" complete "$program" "${words[@]:first}" 2>/dev/null)
}

_onramp_tc() { _onramp_words tc 1 onramp; }
_onramp_ip() { _onramp_words ip 1 onramp; }

_onramp_or_words() {
    if ((COMP_CWORD > 1)) && [[ ${COMP_WORDS[1]} == tc || ${COMP_WORDS[1]} == ip ]]; then
        _onramp_words "${COMP_WORDS[1]}" 2 "${COMP_WORDS[0]}"
    else
        _onramp "$@"
    fi
}
complete -o nosort -o bashdefault -F _onramp_or_words onramp
